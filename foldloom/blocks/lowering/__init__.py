"""Lowering: what turns a block into a Python function of one example. Block classes are written against it."""
