"""Formulas of the learning signal and its diagnostics: pure numpy, each stated once with its source."""
