"""Composition roots: they build the same `Orchestrator` on child processes (`local`) or on simulated workers.

Environment variables, wall clocks, folders and processes are known here and nowhere below.
"""
