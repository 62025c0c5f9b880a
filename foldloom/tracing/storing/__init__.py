"""`fl.save` and `fl.load`: recordings and plans on disk, as arrays and JSON.

A file is an archive of arrays as numpy writes them, uncompressed and without pickles. One of them holds JSON: what the arrays are, the ops, and
the nesting of results. Another is a checksum of all. What is loaded is looked through as if a stranger had written it: operations
are those of torch that take tensors, or cells by their names; classes are Python's own containers.
"""

from foldloom.tracing.storing.files import checksum_of, load, save

__all__ = ["checksum_of", "load", "save"]
