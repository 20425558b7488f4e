"""The trainer: sealed transcripts and a plan in, one optimizer step and weights under their address out (torch)."""
