"""What a run says of itself: figures folded from its event log, shown live, as tables, as one page, and per episode.

Invariant: everything is a fold over the event log and its sealed rows, so the same log gives the same report, byte for
byte. What was not measured is absent and shown as "–"; it is never 0.
"""
