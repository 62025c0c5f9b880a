"""Functionalization: views and changes in place over values that never change."""
