"""Headrace: a rollout system for agentic RL of language models, from a task to a policy update and round again."""

__version__ = "0.1.0"
