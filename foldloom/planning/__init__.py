"""What will run: equal nodes merged, a step for every node, a row for every value. Imports no torch."""
