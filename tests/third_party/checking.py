"""The law for code of others: batched gives what one by one gives, down to types, None gradients and NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch

import foldloom as fl

SCHEDULERS = (fl.ByDepth(), fl.ByAgenda())


class RefusedError(Exception):
    """Foldloom said in words that it cannot do this."""


class CrashError(Exception):
    """Something else was raised that is not raised one by one."""


class WrongResultError(Exception):
    """There is a result, and it is another one."""


_PLAIN = (str, bytes, int, float, complex, torch.Size, torch.dtype)


def check(function: Callable[[Any], Any], examples: Sequence[Any], sources: Iterable[torch.Tensor] = ()) -> None:
    """``fl.batch(function)(examples)`` is what a plain loop gives: values, types, requires_grad, gradients for ``sources``."""
    sources = list(sources)
    torch.manual_seed(0)
    expected = [function(example) for example in examples]
    expected_grads = _gradients(expected, sources)
    assert not sources or any(grad is not None for grad in expected_grads), "no source has a gradient: nothing is tried"
    for scheduler in SCHEDULERS:
        torch.manual_seed(0)
        try:
            actual = fl.batch(function, scheduler=scheduler)(examples)
            grads = _gradients(actual, sources)
        except fl.errors.FoldloomError as error:
            raise RefusedError(str(error)) from error
        except Exception as error:
            raise CrashError(f"{type(error).__name__}: {error}") from error
        _compare(actual, expected, "result")
        _compare(grads, expected_grads, "gradient")


def _compare(actual: Any, expected: Any, name: str) -> None:
    ours, theirs = list(_parts(actual, name)), list(_parts(expected, name))
    for (path, one), (other_path, other) in zip(ours, theirs, strict=False):
        if path != other_path or type(one) is not type(other):
            raise WrongResultError(f"{path} is {type(one)}, one by one {other_path} is {type(other)}")
        if isinstance(other, torch.Tensor):
            if one.requires_grad != other.requires_grad:
                raise WrongResultError(f"{path}.requires_grad is {one.requires_grad}, one by one {other.requires_grad}")
            exact: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9} if other.dtype == torch.float64 else {}
            try:
                torch.testing.assert_close(one, other, equal_nan=True, **exact)
            except AssertionError as error:
                raise WrongResultError(f"{path}: {error}") from error
        elif isinstance(other, _PLAIN) and one != other and not (one != one and other != other):
            raise WrongResultError(f"{path} is {one!r}, one by one {other!r}")
    if len(ours) != len(theirs):
        raise WrongResultError(f"{name} has {len(ours)} parts, one by one {len(theirs)}")


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """A value, and all that is in it, in order, with the way to each."""
    yield path, value
    for name, item in _inside(value):
        yield from _parts(item, f"{path}{name}")


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (torch.Tensor, torch.Size, type)) or (callable(value) and not hasattr(value, "to_dict")):
        return
    if isinstance(value, (list, tuple)):
        yield from ((f"[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif is_dataclass(value):
        yield from ((f".{field.name}", getattr(value, field.name)) for field in fields(value))
    elif hasattr(value, "to_dict"):  # a TensorDict, a graph of torch_geometric
        yield from ((f"[{key!r}]", item) for key, item in value.to_dict().items())
    elif hasattr(value, "__dict__"):
        yield from ((f".{key}", item) for key, item in vars(value).items())


def _gradients(results: Any, sources: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Of a number that depends on every tensor of the results, on each element in another way."""
    loss = torch.zeros((), dtype=torch.float64)
    tensors = [part for _, part in _parts(results, "") if isinstance(part, torch.Tensor) and part.requires_grad]
    for number, tensor in enumerate(tensors):
        loss = loss + (tensor * torch.cos(torch.arange(tensor.numel()) + number).view(tensor.shape)).sum()
    if not sources or not loss.requires_grad:
        return [None] * len(sources)
    # Examples may share a graph that was there before: it must outlive this pass.
    return list(torch.autograd.grad(loss, sources, allow_unused=True, retain_graph=True))


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """An example for each shape, of float64, with gradients."""
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]
