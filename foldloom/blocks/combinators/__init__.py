"""The kinds of blocks, by family. One more is a subclass of `Block`, with an interpreter in `runtime/program`: see docs/extending.md."""
