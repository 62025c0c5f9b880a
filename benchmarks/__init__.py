"""Every figure in the README and the docs comes from a command here: ``python -m benchmarks --help``."""
