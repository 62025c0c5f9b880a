"""Write a model for one example; run it on a batch of differently shaped ones in few large kernels."""

import typing as _typing

from foldloom import errors, lazy_imports

if _typing.TYPE_CHECKING:
    from foldloom.execution.engine import Planned
    from foldloom.exporting import StaticModel, export, static_model
    from foldloom.graph.ragged import Ragged
    from foldloom.graph.recording import Recording
    from foldloom.planning.plans import Plan
    from foldloom.planning.schedulers import ByAgenda, ByDepth, OneByOne, Scheduler
    from foldloom.serving import Answer, Server, ServerStatistics
    from foldloom.streaming import Stream, StreamStatistics, stream
    from foldloom.tracing import Batched, Cell, batch, batching, cell, lift, one_by_one, plan, record, record_each, vmap
    from foldloom.tracing.storing import load, save
    from foldloom.views import Page, Profile, explain, profile, show

__version__ = "0.1.0"

__all__ = [
    "Answer",
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
    "Server",
    "ServerStatistics",
    "StaticModel",
    "Stream",
    "StreamStatistics",
    "batch",
    "batching",
    "cell",
    "errors",
    "explain",
    "export",
    "lift",
    "load",
    "one_by_one",
    "plan",
    "profile",
    "record",
    "record_each",
    "save",
    "show",
    "static_model",
    "stream",
    "vmap",
]

lazy_imports.load_on_demand(
    __name__,
    {
        "execution.engine": ["Planned"],
        "exporting": ["StaticModel", "export", "static_model"],
        "graph.ragged": ["Ragged"],
        "graph.recording": ["Recording"],
        "planning.plans": ["Plan"],
        "planning.schedulers": ["ByAgenda", "ByDepth", "OneByOne", "Scheduler"],
        "serving": ["Answer", "Server", "ServerStatistics"],
        "streaming": ["Stream", "StreamStatistics", "stream"],
        "tracing": [
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
        ],
        "tracing.storing": ["load", "save"],
        "views": ["Page", "Profile", "explain", "profile", "show"],
    },
)
