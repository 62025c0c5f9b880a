"""The handle of a value that is not computed yet, and its methods."""
