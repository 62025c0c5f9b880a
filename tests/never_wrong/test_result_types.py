"""Finding 6: results keep their types."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import foldloom as fl
from tests.never_wrong.checking import (
    assert_in_words,
    assert_same,
    check,
    gradients,
    linear,
    loss_of,
    tensors_in,
    vectors,
)

Pair = namedtuple("Pair", "first second")


class Typed(NamedTuple):
    first: Any
    second: int = 3


class Numbers(list[Any]):
    pass


class Triple(tuple[Any, ...]):
    pass


class Named(dict[str, Any]):
    pass


@dataclass
class Data:
    first: Any
    second: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    first: Any


@dataclass(slots=True)
class Slots:
    first: Any


class Plain:
    def __init__(self, first: Any) -> None:
        self.first = first


class Colour(Enum):
    RED = 1


def grouped(x: torch.Tensor) -> Any:
    groups: defaultdict[str, list[Any]] = defaultdict(list)
    for row in x:
        groups["a"].append(row * 2)
    return groups


def with_attributes(x: torch.Tensor) -> Any:
    numbers = Numbers([x * 2])
    numbers.name = x * 3  # type: ignore[attr-defined]
    return numbers


def twice(x: torch.Tensor) -> Any:
    """One list in two places is one list in the result too."""
    rows = [x * 2]
    return rows, rows


TYPES: dict[str, Callable[[torch.Tensor], Any]] = {
    "OrderedDict": lambda x: OrderedDict(b=x * 2, a=x),
    "defaultdict": grouped,
    "Counter": lambda x: Counter(a=2, b=int(x.argmax())),
    "dict of a kind": lambda x: Named(a=x * 2),
    "list of a kind": lambda x: Numbers([x * 2, 3]),
    "list with attributes": with_attributes,
    "tuple of a kind": lambda x: Triple([x * 2, 3]),
    "namedtuple": lambda x: Pair(x * 2, [x * 3]),
    "NamedTuple": lambda x: Typed(x * 2),
    "dataclass": lambda x: Data(x * 2, [x]),
    "frozen dataclass": lambda x: Frozen(x * 2),
    "Size": lambda x: (x * 2).shape,
    "Size in a tuple": lambda x: (x * 2, (x * 2).shape, (x * 2).size()),
    "Size made": lambda x: torch.Size([len(x), 2]),
    "named result": lambda x: (x * 2).max(0),
    "sorted": lambda x: (x * 2).sort(),
    "topk": lambda x: torch.topk(x * 2, 2),
    "var_mean": lambda x: torch.var_mean(x * 2),
    "unbound": lambda x: (x * 2).unbind(),
    "chunks": lambda x: (x * 2).chunk(2),
    "split": lambda x: torch.split(x * 2, 1),
    "where": lambda x: torch.where((x * 2) > 0),
    "nonzero as a tuple": lambda x: (x * 2 > 0).nonzero(as_tuple=True),
    "list of values": lambda x: list(x * 2),
    "set": lambda x: {1, int(x.argmax())},
    "frozenset": lambda x: frozenset({1, 2}),
    "range": lambda x: range(len(x)),
    "None": lambda x: None,
    "nothing in it": lambda x: [(), [], {}, None],
    "numbers": lambda x: (1, 2.0, True, "a", b"b", 1j, Colour.RED, torch.float32, len(x)),
    "numpy": lambda x: np.ones(3),
    "numpy number": lambda x: np.float32(1.5),
    "item": lambda x: (x.argmax().item(), x.sum().item(), (x > 0).any().item(), x.tolist()),
    "parameter": lambda x: nn.Parameter(x.detach() * 2),
    "buffer": lambda x: nn.Buffer(x.detach() * 2),
    "0-d": lambda x: (x * 2).sum(),
    "empty": lambda x: (x * 2)[:0],
    "nested": lambda x: {"a": [(x * 2, {"b": Pair(x, OrderedDict(c=x))})]},
    "key that is a tuple": lambda x: {(1, "a"): x * 2, None: x},
    "packed": lambda x: nn.utils.rnn.pack_sequence([x[:, None] * 2]),
    "complex": lambda x: torch.complex(x, x * 2),
    "bool": lambda x: (x * 2) > 0,
    "half": lambda x: (x * 2).half(),
    "sparse": lambda x: (x * 2).detach().to_sparse(),
}


@pytest.mark.parametrize(
    "name",
    list(TYPES),
)
def test_results_keep_their_types(name: str) -> None:
    inputs = vectors()
    check(TYPES[name], inputs, sources=inputs)


OBJECTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "SimpleNamespace": lambda x: SimpleNamespace(a=x * 2),
    "object": lambda x: Plain(x * 2),
    "object in a list": lambda x: [Plain(x * 2), Plain(3)],
    "distribution": lambda x: torch.distributions.Normal(x * 2, x.exp(), validate_args=False),
}


@pytest.mark.parametrize(
    "name",
    list(OBJECTS),
)
def test_objects_hold_tensors(name: str) -> None:
    inputs = vectors()
    check(OBJECTS[name], inputs, sources=inputs, or_refused=True)


CONTAINERS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], Any]]] = {
    "deque": (lambda x: deque([x * 2, x], maxlen=3), lambda result: (result.maxlen, list(result))),
    "UserDict": (lambda x: UserDict(a=x * 2), lambda result: dict(result)),
    "UserList": (lambda x: UserList([x * 2]), lambda result: list(result)),
    "ChainMap": (lambda x: ChainMap({"a": x * 2}, {"b": x}), lambda result: result.maps),
    "proxy": (lambda x: MappingProxyType({"a": x * 2}), lambda result: dict(result)),
    "slots": (lambda x: Slots(x * 2), lambda result: result.first),
    "generator": (lambda x: (row * 2 for row in x), lambda result: [float(row.detach()) for row in result]),
    "map": (lambda x: map(torch.neg, x), lambda result: [float(row.detach()) for row in result]),
    "dict values": (lambda x: {"a": x * 2}.values(), lambda result: list(result)),
    "closure": (lambda x: lambda y=x * 2: y, lambda result: result()),
}


@pytest.mark.parametrize(
    "name",
    list(CONTAINERS),
)
def test_other_containers_or_refused(name: str) -> None:
    inputs = vectors()
    make, read = CONTAINERS[name]
    expected = [make(x) for x in inputs]
    try:
        actual = fl.batch(make)(inputs)
    except fl.errors.FoldloomError as error:
        assert_in_words(error)
        return
    assert [type(result) for result in actual] == [type(result) for result in expected]
    assert_same([read(result) for result in actual], [read(result) for result in expected])


def test_one_list_in_two_places() -> None:
    for first, second in fl.batch(twice)(vectors()):
        assert first is second


def test_one_value_in_two_places() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        return y, {"again": y}

    for first, again in fl.batch(function)(vectors()):
        assert first is again["again"]


def test_values_that_are_kept_become_tensors() -> None:
    """On objects, in lists and closures, of a program that waits for values: the very objects, with their histories."""
    layer, inputs = linear(), vectors()

    class Node:
        state: Any = None

    def function(node: Node, kept: list[Any], x: torch.Tensor) -> Any:
        y = layer(x)
        node.state, early = y, y * 2
        kept += [early, x, lambda: early, y.detach(), layer.weight.t()]
        return y if y.sum() > 0 else y * 3

    def run(runs: Any) -> Any:
        nodes = [Node() for _ in inputs]
        lists: list[list[Any]] = [[] for _ in inputs]
        results = runs(function)(nodes, lists, inputs)
        states = [node.state for node in nodes]
        kept = [[first, given, read(), cut, weight] for first, given, read, cut, weight in lists]
        assert all(first is read for first, _, read, *_ in kept)
        return results, states, kept

    (actual, *left), (expected, *should_be) = run(fl.batch), run(fl.one_by_one)
    assert_same(actual, expected)
    for one, other in zip(tensors_in(left), tensors_in(should_be), strict=True):
        assert type(one) is torch.Tensor
        assert one.requires_grad == other.requires_grad
        torch.testing.assert_close(one, other)
    sources = [*inputs, *layer.parameters()]
    assert_same(gradients(left, sources, loss_of), gradients(should_be, sources, loss_of))


def test_kept_values_are_tensors_in_every_way() -> None:
    with fl.batching():
        kept = [torch.ones(2) * 2 for _ in range(3)]
        kept[0].sum().item()
    kept[0].label = "a"  # type: ignore[attr-defined]
    reference = weakref.ref(kept[0])
    assert type(kept[0]) is torch.Tensor
    assert isinstance(kept[0], torch.FloatTensor)
    assert copy.deepcopy(kept[0]).tolist() == [2, 2]
    assert kept[0].numpy().tolist() == [2, 2]
    assert kept[0].add_(1).tolist() == [3, 3]
    assert kept[1].tolist() == [2, 2]
    del kept
    gc.collect()
    assert reference() is None


def test_views_of_one_value_share_memory() -> None:
    def function(x: torch.Tensor) -> Any:
        y = (x * 2).detach()
        return y, y[1:]

    for whole, part in fl.batch(function)(vectors()):
        part.zero_()
        assert whole[1:].tolist() == [0, 0]


SHARING: dict[str, Callable[[torch.Tensor], Any]] = {
    "the view first": lambda x: (lambda y: (y[1:], y))(x * 2),
    "rows": lambda x: (lambda y: (y, y.unbind(), y[0]))(torch.stack([x, x * 2])),
    "of a view": lambda x: (lambda y: (y, y.view(3, 1)[1:], y.t()))(x * 2),
    "detached": lambda x: (lambda y: (y, y.detach()))(x * 2),
    "of what was given": lambda x: (x[1:], x.detach()),
    "two parts": lambda x: (lambda y: (y, *y.split(2)))(x * 2),
    "a part of a part": lambda x: (lambda y: [y, {"a": y[1:][1:]}])(x * 2),
    "after a wait": lambda x: (lambda y: (y, y[1:]) if y.sum() > 0 else (y, y[:1]))(x * 2),
}


@pytest.mark.parametrize("name", list(SHARING))
def test_results_share_memory_as_one_by_one(name: str) -> None:
    inputs = vectors()
    check(SHARING[name], inputs, sources=inputs)
    memory = []
    for runs in (fl.batch, fl.one_by_one):
        found = [
            [*tensors_in(result), given] for given, result in zip(inputs, runs(SHARING[name])(inputs), strict=True)
        ]
        addresses = [[part.data_ptr() for part in parts] for parts in found]
        memory.append([[address - parts[0] for address in parts[:-1]] for parts in addresses])
        memory.append([[address == parts[-1] for address in parts] for parts in addresses])
    assert memory[:2] == memory[2:]


def test_results_do_not_share_memory() -> None:
    first, *others = fl.batch(lambda x: (x * 2).detach())([torch.ones(3)] * 3)
    first.zero_()
    assert all(other.tolist() == [2, 2, 2] for other in others)
