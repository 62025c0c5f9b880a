"""Which nodes run together, and in which order. One small file per strategy; `base` says what they share."""

from foldloom.planning.schedulers.base import Scheduler
from foldloom.planning.schedulers.by_agenda import ByAgenda
from foldloom.planning.schedulers.by_depth import ByDepth
from foldloom.planning.schedulers.unbatched import OneByOne

__all__ = ["ByAgenda", "ByDepth", "OneByOne", "Scheduler"]
