"""Many examples in one thread, each with a stack and a torch state of its own."""
