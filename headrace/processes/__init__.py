"""Child processes: one protocol for sandbox, grader, engine and trainer. A child never outlives its parent."""
