"""Mains of child processes: each builds one synchronous core and serves it until the parent is gone."""
