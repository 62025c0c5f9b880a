"""The kinds of blocks, by family."""
