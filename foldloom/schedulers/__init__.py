"""Which nodes run together, and in which order. One small file per strategy; `base` says what they share."""

from foldloom.schedulers.base import Scheduler
from foldloom.schedulers.by_agenda import ByAgenda
from foldloom.schedulers.by_depth import ByDepth
from foldloom.schedulers.one_by_one import OneByOne

__all__ = ["ByAgenda", "ByDepth", "OneByOne", "Scheduler"]
