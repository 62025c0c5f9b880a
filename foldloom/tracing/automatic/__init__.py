"""Automatic cells: functions of the user's that are called often and proved to do the same again are recorded as one node."""
