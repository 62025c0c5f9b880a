"""The graph under construction: its nodes, its inputs, and which of its values require grad."""
