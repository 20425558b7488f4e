"""The Inference port: an embedded torch engine over `transformers` models, run inline or in a child process."""
