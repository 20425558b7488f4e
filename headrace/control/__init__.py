"""Verbs: small named loops that call the deciders and await the ports. The event loop is the only clock."""
