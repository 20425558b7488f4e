"""The sections of the report, one module each: lines and grids of text made of what the folds found.

Invariant: every figure has its unit and an absent one is "–"; all text from tasks, policies and tools is inert.
"""
