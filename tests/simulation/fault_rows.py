"""The fault model as data: F01 to F56, each with what is injected, where, and what has to hold besides every law.

A line may have several forms, and several plans that are trials of their own. To add one: a `Row` (`killed` where the
process dies, `replayed` where it also has to come to the same states, `survived` where it lives on) in the module of its
subject, and its assertion in `must_episodes.py` or `must_runs.py`; `test_fault_rows.py` makes a case of it.
"""

from simulation import rows_of_actions, rows_of_runs, rows_of_weights
from simulation.trials import Row

ROWS: tuple[Row, ...] = (*rows_of_actions.ROWS, *rows_of_weights.ROWS, *rows_of_runs.ROWS)
