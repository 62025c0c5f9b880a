"""The law for plain PyTorch: what is batched as it runs gives what it gives one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

import foldloom as fl
from tests.law import SCHEDULERS, assert_same, gradients


def without_tensors(value: Any) -> Any:
    """What else there is in a result, and how it is nested."""
    if isinstance(value, torch.Tensor):
        return torch.Tensor
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return [without_tensors(item) for item in value]
    if isinstance(value, dict):
        return {key: without_tensors(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return [without_tensors(getattr(value, field.name)) for field in fields(value)]
    return value


def check_on_the_fly(
    function: Callable[..., Any], *columns: Sequence[Any], sources: Iterable[torch.Tensor] = (), records: bool = True
) -> None:
    """Everything the law asks; ``records`` says that the function asks for no value, so that it can be planned ahead."""
    sources = list(sources)
    expected = fl.one_by_one(function)(*columns)
    expected_grads = gradients(expected, sources) if sources else []
    for scheduler in SCHEDULERS:
        batched = fl.batch(function, scheduler=scheduler)
        results = [batched(*columns)]
        if records and scheduler in (SCHEDULERS[0], SCHEDULERS[-1]):
            planned = fl.plan([fl.record(function, *args) for args in zip(*columns, strict=True)], scheduler)
            planned.plan.check()
            results.append(batched.run(planned))
        for actual in results:
            assert without_tensors(actual) == without_tensors(expected)
            assert_same(actual, expected)
            if sources:
                assert_same(gradients(actual, sources), expected_grads)


def steps_of(function: Callable[..., Any], *columns: Sequence[Any]) -> int:
    return fl.plan([fl.record(function, *args) for args in zip(*columns, strict=True)]).statistics().steps
