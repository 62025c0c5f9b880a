"""Programs for one example, from the literature, with no thought of batching: ``python -m examples.tree_lstm``."""
