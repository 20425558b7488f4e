"""Questions that the simulator answers before a machine is rented."""
