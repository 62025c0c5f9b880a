"""How one call becomes a node: its key, what is known of it, and the handles that the caller gets."""
