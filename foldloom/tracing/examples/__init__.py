"""The examples of a batch: how one is recorded, how they wait, and what becomes of each."""
