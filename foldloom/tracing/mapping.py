"""`fl.vmap`: the call of `torch.vmap`, for functions that branch, loop and recurse.

The arguments are taken apart along their mapped dimensions, the function runs once for each slice under `batch`, and its results are stacked.
How arguments, dimensions and results fit together is torch's business, and so are the words in which it says that they do not: its own
functions check the inputs, and where ours check they say the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from foldloom.torch_private import (
    broadcast_dims,
    check_out_dims,
    check_randomness,
    current_transform,
    mapped_inputs,
    name_of_mapped,
    tree_flatten,
    tree_unflatten,
)
from foldloom.tracing.batched import Batched, batch
from foldloom.tracing.scope import scope

P = ParamSpec("P")
R = TypeVar("R")

_RANDOM = (
    "vmap: called random operation while in randomness error mode. Please either use the 'same' or 'different' randomness flags on vmap or "
    "perform the randomness operation out of vmap"
)


def vmap(
    func: Callable[P, R],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[P, R]:
    """`torch.vmap`, for functions that branch on what they compute, loop until they are done, and recurse.

    Arguments, results and errors are those of `torch.vmap`. What that refuses is taken: ``if`` and ``while`` on values, ``.item()``, ``nonzero``, results
    that other examples compute in other ways. The results of all examples must have one shape, since they are stacked; for those that do not, there is
    `batch`.

    >>> import torch, foldloom as fl
    >>> def collatz(n):
    ...     steps = torch.zeros((), dtype=torch.int64)
    ...     while n > 1:
    ...         n, steps = (3 * n + 1 if n % 2 else n // 2), steps + 1
    ...     return steps
    >>> fl.vmap(collatz)(torch.tensor([6, 27, 1]))
    tensor([  8, 111,   0])
    >>> fl.vmap(torch.dot, in_dims=(0, None))(torch.eye(2), torch.tensor([3.0, 4.0]))
    tensor([3., 4.])
    """
    check_randomness(randomness)
    if not (chunk_size is None or chunk_size > 0):
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")
    mapped = _Mapped(func, in_dims, out_dims, randomness, chunk_size)

    @functools.wraps(func)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        return mapped(args, kwargs)  # type: ignore[no-any-return]

    return wrapped


@dataclass(frozen=True)
class _Draws:
    """Where torch's random numbers stand when an example begins. (A tensor by itself would become one of its values.)"""

    state: Tensor | None = None

    def begin(self) -> None:
        if self.state is not None:
            torch.set_rng_state(self.state)

    def after(self) -> _Draws:
        return _Draws() if self.state is None else _Draws(torch.get_rng_state())


class _Mapped:
    def __init__(
        self, function: Callable[..., Any], in_dims: Any, out_dims: Any, randomness: str, chunk_size: int | None
    ) -> None:
        self._function = function
        self._in_dims, self._out_dims = in_dims, out_dims
        self._randomness, self._chunk_size = randomness, chunk_size
        self._batched: Batched[..., Any, list[Any]] = batch(self._run_one)

    def _run_one(self, leaves: tuple[Any, ...], spec: Any, kwargs: dict[str, Any], draws: _Draws) -> Any:
        """The leaves of one example's result, their nesting, and whether it is one tensor."""
        draws.begin()
        result = self._function(*tree_unflatten(leaves, spec), **kwargs)
        flat, nesting = tree_flatten(result)
        return flat, nesting, isinstance(result, Tensor), draws.after()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        check_out_dims(self._out_dims, self._function)
        count, dims, leaves, spec = mapped_inputs(self._in_dims, args, self._function)
        if not count:  # of no example nothing can be learned: torch knows the shapes of nothing
            return torch.vmap(self._function, self._in_dims, self._out_dims, self._randomness)(*args, **kwargs)
        columns = [[leaf] * count if dim is None else leaf.unbind(dim) for leaf, dim in zip(leaves, dims, strict=True)]
        examples = list(zip(*columns, strict=True))
        results = self._drawing(lambda draws: self._results(examples, spec, kwargs, draws))
        return self._stacked(results)

    def _results(self, examples: list[Any], spec: Any, kwargs: dict[str, Any], draws: _Draws) -> list[Any]:
        size = self._chunk_size or len(examples)
        chunks = [examples[start : start + size] for start in range(0, len(examples), size)]
        return [
            result
            for chunk in chunks
            for result in self._batched(chunk, *([given] * len(chunk) for given in (spec, kwargs, draws)))
        ]

    def _drawing(self, run: Callable[[_Draws], list[Any]]) -> list[Any]:
        """Run, with torch's random numbers as ``randomness`` says."""
        if self._randomness == "different" or scope.recorder is not None or current_transform() is not None:
            return run(_Draws())
        before = torch.get_rng_state()
        if self._randomness == "same":
            results = run(_Draws(before))
            torch.set_rng_state(results[0][3].state)
            return results
        results = run(_Draws())
        if not torch.equal(torch.get_rng_state(), before):
            torch.set_rng_state(before)
            raise RuntimeError(_RANDOM)
        return results

    # ---- Results.

    def _stacked(self, results: Sequence[tuple[list[Any], Any, bool, _Draws]]) -> Any:
        _, nesting, is_tensor, _ = results[0]
        name = name_of_mapped(self._function)
        if any(other != nesting for _, other, *_ in results):
            others = sorted({str(other) for _, other, *_ in results})
            raise ValueError(
                f"vmap({name}, ...): `{name}` must return results of one structure, got {' and '.join(others)} for different examples"
            )
        dims = self._dims_of(nesting, is_tensor)
        columns = zip(*[flat for flat, *_ in results], strict=True)
        stacked = [_stack(name, column, dim) for column, dim in zip(columns, dims, strict=True)]
        return tree_unflatten(stacked, nesting)

    def _dims_of(self, nesting: Any, is_tensor: bool) -> list[int | None]:
        """Where each leaf of the results gets its mapped dimension."""
        dims = self._out_dims
        if not is_tensor:
            found: list[int | None] | None = broadcast_dims(dims, nesting)
        elif isinstance(dims, tuple):
            found = list(dims) if len(dims) == 1 else None
        else:
            found = [dims] if dims is None or isinstance(dims, int) else None
        if found is None:
            raise ValueError(
                f"vmap({name_of_mapped(self._function)}, ..., out_dims={dims})(<inputs>): out_dims is not compatible with the structure of "
                f"`outputs`. out_dims has structure {tree_flatten(dims)[1]} but outputs has structure {nesting}."
            )
        return found


def _stack(name: str, column: Sequence[Any], dim: int | None) -> Any:
    first = column[0]
    if dim is None:
        if not all(_is_same(item, first) for item in column):
            raise ValueError(f"vmap({name}, ...): `{name}` can not return a BatchedTensor when out_dim is None")
        return first
    for item in column:
        if not isinstance(item, Tensor):
            raise ValueError(
                f"vmap({name}, ...): `{name}` must only return Tensors, got type {type(item)}. Did you mean to set out_dims= to None for "
                "output?"
            )
    shapes = sorted({tuple(item.shape) for item in column})
    if len(shapes) > 1:
        raise ValueError(
            f"vmap({name}, ...): `{name}` must return tensors of one shape, got {' and '.join(map(str, shapes))} for different examples. "
            "`fl.batch` returns a list"
        )
    if not -1 - first.dim() <= dim <= first.dim():
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-1 - first.dim()}, {first.dim()}], but got {dim})"
        )
    return torch.stack(tuple(column), dim)


def _is_same(item: Any, first: Any) -> bool:
    """Whether a result that is not mapped is the same for another example."""
    if item is first:
        return True
    if isinstance(item, Tensor) and isinstance(first, Tensor):
        return item.shape == first.shape and torch.allclose(item, first, 0, 0, equal_nan=True)
    return type(item) is type(first) and bool(item == first)
