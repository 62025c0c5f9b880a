"""A training on disk: what it goes on from after it was stopped."""
