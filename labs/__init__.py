"""Experiments from the command line."""
