"""Deciders: state in, a decision with its reason out. Synchronous, without I/O, clock or randomness."""
