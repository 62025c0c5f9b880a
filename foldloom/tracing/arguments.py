"""What the public functions are given, checked: an error says what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from foldloom.errors import ArgumentError
from foldloom.planning.schedulers import ByAgenda, Scheduler


def scheduler_of(given: Scheduler | None) -> Scheduler:
    if given is None:
        return ByAgenda()
    if not isinstance(given, Scheduler):
        raise ArgumentError(
            f"{given!r} is not a scheduler: write `scheduler=fl.ByDepth()`, `scheduler=fl.ByAgenda()` or `scheduler=fl.OneByOne()`"
        )
    return given


def described(value: object) -> str:
    return f"{value!r:.60} ({type(value).__name__})"


def examples_of(columns: Sequence[Iterable[Any]]) -> list[tuple[Any, ...]]:
    if not columns:
        raise ArgumentError("call the batched function with at least one list of arguments: fl.batch(f)(xs)")
    for column in columns:
        if not isinstance(column, Iterable) or (isinstance(column, torch.Tensor) and not column.ndim):
            raise ArgumentError(
                f"the batched function takes a list for each argument, one item for each example, and was given {described(column)}: write "
                "`fl.batch(f)([x])`"
            )
    lists = [list(column) for column in columns]
    lengths = [len(column) for column in lists]
    if len(set(lengths)) > 1:
        raise ArgumentError(f"the lists of arguments have different lengths {lengths}; every example needs one of each")
    return list(zip(*lists, strict=True))
