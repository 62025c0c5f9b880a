"""Cells: functions that run for many members as one operation."""
