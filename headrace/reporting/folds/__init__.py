"""Incremental folds over the event log: each takes every event in order and gives a frozen result at any time.

A fold keeps only what events and sealed rows said. `index.RunIndex` does the joins that several need (which group an
episode belongs to, which update trained it) and is fed first.
"""
