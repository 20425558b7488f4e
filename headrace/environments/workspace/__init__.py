"""A folder that tools work in, with a revision after every call that it can be taken back to."""
