"""What a call of a torch function becomes: its arguments taken apart, its result types inferred, its kernel."""
