"""Nouns: what every stage takes in and hands on. Typed, frozen, validated on decode; no I/O, clock or randomness.

Records are trees of frozen values, so none can be part of a cycle; the frequent ones are out of the garbage collector's
sight (`gc=False`), which otherwise walks every record of a long run again and again.
"""
