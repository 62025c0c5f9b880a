"""Odd arguments for the operators of torch's database: every sample, ties, chances of nothing and of all, sizes that differ, no elements.

Each batch is made of samples of the database that were changed a little. What the operator does not take eagerly is left out. Here the
law is taken to the letter: a gradient that is None is not zero, and an output requires grad exactly if it does eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.operators import (
    EAGER_FAILS,
    ERROR,
    WRONG,
    Example,
    MismatchError,
    Outcome,
    Verdict,
    calls_of,
    check_batch,
    described,
    dtype_of,
    eagerly,
    map_tensors,
    samples_of,
    spread,
    structure,
    tensors,
)

KINDS = ("samples", "ties", "chances", "ragged", "empty")
MOST_SAMPLES = 40
"""Of one operator and kind. Most operators have fewer, and a few have thousands."""


def odd_batches(kind: str, by_seed: Sequence[Sequence[Example]]) -> Iterator[list[Example]]:
    """Batches of one kind, made of the samples of several seeds."""
    for number in spread(len(by_seed[0]), MOST_SAMPLES):
        alike = [samples[number] for samples in by_seed if number < len(samples)]
        first = alike[0]
        alike = [example if structure(example.arguments) == structure(first.arguments) else first for example in alike]
        if kind == "samples":
            yield alike
        elif kind == "ties":
            yield [_changed(example, _rounded) for example in alike]
        elif kind == "chances" and isinstance(first.arguments[2].get("p"), float):
            for chance in (0.0, 1.0):
                yield [_with_chance(example, chance) for example in alike]
        elif kind in ("ragged", "empty"):
            yield from _of_other_sizes(alike, empty=kind == "empty")


def _changed(example: Example, change: Callable[[torch.Tensor], torch.Tensor]) -> Example:
    return Example(map_tensors(change, example.arguments), example.comparable)


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    """Few different numbers, so that many are equal."""
    if not tensor.is_floating_point() or tensor.layout != torch.strided:
        return tensor
    return tensor.detach().round().clamp(-2, 2).requires_grad_(tensor.requires_grad)


def _with_chance(example: Example, chance: float) -> Example:
    input, args, kwargs = example.arguments
    return Example((input, args, {**kwargs, "p": chance}), example.comparable)


def _of_other_sizes(alike: Sequence[Example], *, empty: bool) -> Iterator[list[Example]]:
    """Cut along the first or last dimension: all tensors that are as long there as the first one, or the first one alone."""
    given = tensors(alike[0].arguments)
    if not given or given[0].layout != torch.strided or not given[0].numel():
        return
    for dim in sorted({0, given[0].ndim - 1}) if given[0].ndim else ():
        length = given[0].shape[dim]
        for whole in (True, False):
            lengths = [length, 0, length] if empty else [length, max(1, length - 1), max(1, length - 2)]
            yield [
                _changed(example, _cutter(dim, length, kept, whole))
                for example, kept in zip(alike, lengths, strict=False)
            ]


def _cutter(dim: int, length: int, kept: int, whole: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    count = 0

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        fits = tensor.layout == torch.strided and tensor.ndim > dim and tensor.shape[dim] == length
        if not fits or (count > 1 and not whole):
            return tensor
        return tensor.detach().narrow(dim, 0, kept).clone().requires_grad_(tensor.requires_grad)

    return cut


def judge_odd(op: Any, kinds: Sequence[str] = KINDS, seeds: int = 3) -> Verdict:
    """The verdict on the first batch that differs, of all kinds."""
    verdict = Verdict(op.full_name, ways=[])
    dtype = dtype_of(op)
    if dtype is None:
        verdict.verdict, verdict.detail = EAGER_FAILS, "it does not run on the CPU"
        return verdict
    verdict.dtype = str(dtype).removeprefix("torch.")
    by_seed = [[one for one in samples_of(op, dtype, seed) if tensors(one.arguments)] for seed in range(seeds)]
    call = calls_of(op)["function"]
    found: list[str] = []
    for kind in kinds:
        for batch in odd_batches(kind, by_seed):
            difference = _difference(op, call, batch)
            if difference is not None:
                verdict.verdict = WRONG if isinstance(difference, MismatchError) else verdict.verdict
                verdict.verdict = ERROR if verdict.verdict != WRONG else WRONG
                found.append(f"{kind}: {described(difference)} {_shapes(batch)}")
                break
    verdict.detail = "; ".join(found)
    return verdict


def _difference(op: Any, call: Callable[[Example], Any], batch: Sequence[Example]) -> Exception | None:
    pairs: list[tuple[Example, Outcome]] = []
    for example in batch:
        try:
            pairs.append((example, eagerly(call, example)))
        except Exception:
            continue  # no example of a batch, because it is none alone
    if not pairs:
        return None
    examples, expected = zip(*pairs, strict=True)
    only_shapes = "empty" in op.name or any(outcome.draws for outcome in expected)
    try:
        check_batch(call, examples, expected, only_shapes, strictly=not only_shapes)
    except Exception as error:
        return error
    return None


def _shapes(batch: Sequence[Example]) -> str:
    shapes = [[tuple(tensor.shape) for tensor in tensors(example.arguments)] for example in batch]
    settings = [value for value in batch[0].arguments[1] if not isinstance(value, torch.Tensor)]
    named = {key: value for key, value in batch[0].arguments[2].items() if not isinstance(value, torch.Tensor)}
    return f"of {shapes} {settings} {named}"[:200]
