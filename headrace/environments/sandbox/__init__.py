"""Tools that run confined: bubblewrap where it works, and a named, refused-by-default rest where it does not."""
