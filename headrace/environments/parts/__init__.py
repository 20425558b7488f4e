"""A user's own tools as an environment: loaded once in a child of their own, forked for each episode."""
