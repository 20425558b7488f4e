"""The learning signal by name: one struct per concern, each with the numbers that its choice needs and no others.

Invariant: a choice that is not known, or a number that belongs to another choice, cannot be decoded. The formulas live in
`algorithms` and `training`; what may stand beside what is said by the checks beside it and by the section that holds them.
"""
