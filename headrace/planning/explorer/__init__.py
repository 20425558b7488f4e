"""A sweep of random faults and interleavings over small simulated runs; every law is checked on every log."""
