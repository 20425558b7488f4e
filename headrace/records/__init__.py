"""Nouns: what every stage takes in and hands on. Typed, frozen, validated on decode; no I/O, clock or randomness."""
