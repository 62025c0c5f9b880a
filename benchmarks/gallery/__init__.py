"""The programs of `examples.gallery`, and what their authors would otherwise write for a batch."""
