"""Write a model for one example; run it on a batch of differently shaped ones in few large kernels."""

from foldloom import errors
from foldloom.engine import Planned
from foldloom.lazy import Batched, Cell, batch, batching, cell, lift, one_by_one, plan, record
from foldloom.plan import Plan
from foldloom.ragged import Ragged
from foldloom.recording import Recording
from foldloom.schedulers import ByAgenda, ByDepth, OneByOne, Scheduler
from foldloom.views import Page, Profile, explain, profile, show

__version__ = "0.1.0"

__all__ = [
    "Batched",
    "ByAgenda",
    "ByDepth",
    "Cell",
    "OneByOne",
    "Page",
    "Plan",
    "Planned",
    "Profile",
    "Ragged",
    "Recording",
    "Scheduler",
    "batch",
    "batching",
    "cell",
    "errors",
    "explain",
    "lift",
    "one_by_one",
    "plan",
    "profile",
    "record",
    "show",
]
