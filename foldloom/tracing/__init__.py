"""On-the-fly recording: ordinary code for one example, its cells recorded as they are called."""

from foldloom.tracing.batched import Batched, batch, batching, lift, one_by_one, plan, record, record_each
from foldloom.tracing.cells.core import Cell, cell

__all__ = ["Batched", "Cell", "batch", "batching", "cell", "lift", "one_by_one", "plan", "record", "record_each"]
