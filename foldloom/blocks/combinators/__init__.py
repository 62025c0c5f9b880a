"""The kinds of blocks."""
