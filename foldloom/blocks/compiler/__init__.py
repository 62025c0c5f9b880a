"""From a block to a module: lowered to Python functions, checked, and run."""
