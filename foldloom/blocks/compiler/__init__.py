"""From a root block to a module: its types are checked, its blocks lowered, its batches planned and run."""
