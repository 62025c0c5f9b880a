"""Operators of torch's own database."""

from __future__ import annotations

from functools import cache
from typing import Any

from benchmarks import operators


@cache
def database() -> dict[str, Any]:
    return operators.operators()


def named(name: str) -> list[Any]:
    return [op for op in database().values() if name in (op.name, op.full_name)]
