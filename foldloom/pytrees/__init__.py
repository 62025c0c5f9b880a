"""Nested values: the one place that knows how they are walked over."""

from foldloom.pytrees.containers import Kind, is_record, keep_whole, kind_of, leaf, map_items
from foldloom.pytrees.nestings import Constant, Nesting, flatten, map_leaves, unflatten, with_constants
from foldloom.pytrees.searching import contents
from foldloom.pytrees.taking_apart import patched, template_of
from foldloom.pytrees.templates import Node, Output, OutputRun, Patched, PatchedList, Template, fill

__all__ = [
    "Constant",
    "Kind",
    "Nesting",
    "Node",
    "Output",
    "OutputRun",
    "Patched",
    "PatchedList",
    "Template",
    "contents",
    "fill",
    "flatten",
    "is_record",
    "keep_whole",
    "kind_of",
    "leaf",
    "map_items",
    "map_leaves",
    "patched",
    "template_of",
    "unflatten",
    "with_constants",
]
