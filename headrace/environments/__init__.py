"""The Environment port: the world that tools act on. Whatever the policy causes is a receipt, never an exception."""
