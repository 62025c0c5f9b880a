"""Write a model for one example; run it on a batch of differently shaped ones in few large kernels."""

import typing as _typing

from foldloom import errors, loading

if _typing.TYPE_CHECKING:
    from foldloom.engine import Planned
    from foldloom.exporting import StaticModel, export, static_model
    from foldloom.lazy import Batched, Cell, batch, batching, cell, lift, one_by_one, plan, record, record_each
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
    "StaticModel",
    "batch",
    "batching",
    "cell",
    "errors",
    "explain",
    "export",
    "lift",
    "one_by_one",
    "plan",
    "profile",
    "record",
    "record_each",
    "show",
    "static_model",
]

loading.load_on_demand(
    __name__,
    {
        "engine": ["Planned"],
        "exporting": ["StaticModel", "export", "static_model"],
        "lazy": ["Batched", "Cell", "batch", "batching", "cell", "lift", "one_by_one", "plan", "record", "record_each"],
        "plan": ["Plan"],
        "ragged": ["Ragged"],
        "recording": ["Recording"],
        "schedulers": ["ByAgenda", "ByDepth", "OneByOne", "Scheduler"],
        "views": ["Page", "Profile", "explain", "profile", "show"],
    },
)
