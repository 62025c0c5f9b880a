"""On-the-fly recording: ordinary code for one example, its cells recorded as they are called."""

from foldloom.tracing.batched import Batched, batch, one_by_one
from foldloom.tracing.cells.core import Cell, cell
from foldloom.tracing.context import batching, lift
from foldloom.tracing.mapping import vmap
from foldloom.tracing.recording_ahead import plan, record, record_each

__all__ = [
    "Batched",
    "Cell",
    "batch",
    "batching",
    "cell",
    "lift",
    "one_by_one",
    "plan",
    "record",
    "record_each",
    "vmap",
]
