"""Results come back as what the examples returned: of the same classes, and the same object where it was one."""

from __future__ import annotations

import pickle
import sys
import types
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
import torch
from torch.utils import _pytree
from torch.utils.data import DataLoader

import foldloom as fl
from foldloom.errors import FoldloomError

double = fl.cell(lambda x: 2 * x)


class Point(NamedTuple):
    x: Any
    y: Any


class Unpacked(Point):
    """A named tuple that takes other arguments than its fields."""

    def __new__(cls, both: Any) -> Unpacked:
        return super().__new__(cls, *both)


class Row(list[Any]):
    label = "row"


class Pair(tuple[Any, ...]):
    pass


class Table(dict[Any, Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("this table is written once")

    def items(self) -> Any:
        raise TypeError("this table is private")


class LastSeen(OrderedDict[Any, Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key, last=False)


made: list[str] = []


@dataclass
class Record:
    name: str
    value: Any
    parts: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    value: Any
    again: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        made.append("Frozen")
        object.__setattr__(self, "again", (self.value, 1))


@dataclass(slots=True)
class Slotted:
    value: Any
    late: Any = field(init=False)


class Special(Record):
    def __init__(self, value: Any) -> None:
        made.append("Special")
        super().__init__("special", value)
        self.beside = {"also": value}


def _one_more(count: int) -> int:
    return count + 1


@attrs.frozen
class Attrs:
    value: Any
    count: int = attrs.field(converter=_one_more)


class Plain:
    """Of a class that says nothing about itself."""

    def __init__(self, value: Any) -> None:
        made.append("Plain")
        self.value, self.nested = value, [{"deep": (value, "text")}]


class Slots:
    __slots__ = ("__private", "value")

    def __init__(self, value: Any) -> None:
        self.value, self.__private = value, [value]

    @property
    def inside(self) -> Any:
        return self.__private


@dataclass
class ModelOutput(OrderedDict[str, Any]):
    """What HuggingFace's models return, in short: entries and attributes are the same, and its checks want tensors."""

    loss: Any = None
    logits: Any = None

    def __post_init__(self) -> None:
        made.append("ModelOutput")
        for name in ("loss", "logits"):
            if getattr(self, name) is not None:
                self[name] = getattr(self, name)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __delitem__(self, *args: Any) -> None:
        raise TypeError("not here")

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("not here")

    def __reduce__(self) -> Any:
        raise TypeError("not copied so")


class Registered:
    def __init__(self, first: Any, second: Any) -> None:
        made.append("Registered")
        self.first, self.second = first, second


_pytree.register_pytree_node(Registered, lambda r: ([r.first, r.second], None), lambda items, _: Registered(*items))


def of_default(x: Any) -> Any:
    result = defaultdict(list, a=[x])
    result["b"].append(2 * x)
    return result


def slotted(x: Any) -> Any:
    result = Slotted(x)
    if len(x) == 3:
        result.late = x + 1
    return result


def in_order(x: Any) -> Any:
    return {"z": x, "a": {2: x, 1: x + 1}, ("t", 1): x, None: x}


def last_seen(x: Any) -> Any:
    result = LastSeen(a=x)
    result["b"] = x + 1
    return result


RETURNS: dict[str, Callable[[Any], Any]] = {
    "OrderedDict": lambda x: OrderedDict(b=x, a=[x + 1]),
    "defaultdict": of_default,
    "Counter": lambda x: Counter({"a": x, "b": 2}),
    "named tuple": lambda x: Point(x, [x]),
    "named tuple with its own arguments": lambda x: Unpacked((x, "y")),
    "torch.return_types.max": lambda x: x.view(1, 3).max(dim=1),
    "torch.return_types in a list": lambda x: [x.view(1, 3).sort(dim=1), 1],
    "dataclass": lambda x: Record("r", x),
    "frozen dataclass": lambda x: Frozen(x),
    "dataclass with slots": slotted,
    "subclass of a dataclass": lambda x: Special(x),
    "attrs": lambda x: Attrs(x, 3),
    "deque": lambda x: deque([x, 1, x + 1], maxlen=4),
    "subclass of list": lambda x: Row([x, x + 1]),
    "subclass of tuple": lambda x: Pair([x, x + 1]),
    "subclass of dict": lambda x: Table(a=x, b=[x]),
    "subclass of OrderedDict": last_seen,
    "torch.Size": lambda x: (x, x.shape, torch.Size([len(x), 2])),
    "UserDict": lambda x: UserDict(a=x, b=[x]),
    "SimpleNamespace": lambda x: types.SimpleNamespace(value=x, more=[x]),
    "set": lambda x: {x + 1, "a"},
    "frozenset": lambda x: (frozenset([x + 1]), frozenset()),
    "slice": lambda x: slice(None, x, 2),
    "unknown class": lambda x: Plain(x),
    "unknown class with slots": lambda x: [Slots(x)],
    "unknown class without values": lambda x: (x, Plain(3)),
    "model output": lambda x: ModelOutput(loss=x.sum(), logits=x),
    "registered class": lambda x: Registered(x, [x]),
    "torch.distributions": lambda x: torch.distributions.Normal(x, x.exp(), validate_args=False),
    "dict in its order": in_order,
    "nothing": lambda x: None,
    "empty": lambda x: ((), [], {}, x),
    "plain": lambda x: {"heads": [1, 2, None], "name": "n", "flag": True, "raw": b"b", "x": x},
    "array": lambda x: (np.arange(3), x),
}  # fmt: skip


def like(x: Any) -> Any:
    """What is computed, so that the result is a computed one whatever comes of it."""
    return torch.tanh(x * 1.5)


def columns() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, generator=generator) for _ in range(3)]


def assert_like(actual: Any, expected: Any, seen: dict[int, Any]) -> None:
    """Of exactly the same classes, and the same object in the same places."""
    assert type(actual) is type(expected)
    if isinstance(expected, (int, str, bytes, type(None), type)):
        assert actual == expected
        return
    if id(expected) in seen:
        assert seen[id(expected)][1] is actual
        return
    seen[id(expected)] = expected, actual
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected)
        return
    if isinstance(expected, np.ndarray):
        assert np.array_equal(actual, expected)
        return
    parts, expected_parts = list(parts_of(actual)), list(parts_of(expected))
    assert len(parts) == len(expected_parts)
    for part, expected_part in zip(parts, expected_parts, strict=True):
        assert_like(part, expected_part, seen)


def parts_of(value: Any) -> Iterator[Any]:
    if isinstance(value, (set, frozenset)):
        yield from sorted(value, key=str)
    elif isinstance(value, (tuple, list, deque)):
        yield from value
    elif isinstance(value, dict):
        for key in OrderedDict.__iter__(value) if isinstance(value, OrderedDict) else dict.__iter__(value):
            yield key
            yield dict.__getitem__(value, key)
    elif isinstance(value, types.MappingProxyType):
        yield dict(value)
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    if isinstance(value, deque):
        yield value.maxlen
    if isinstance(value, defaultdict):
        yield value.default_factory
    for name, item in getattr(value, "__dict__", {}).items():
        yield name
        yield item
    for name in getattr(type(value), "__slots__", ()):
        found = getattr(value, f"_{type(value).__name__}{name}" if name.startswith("__") else name, "nothing")
        yield found


def assert_results_like(actual: list[Any], expected: list[Any]) -> None:
    assert_like(actual, expected, {})


@pytest.mark.parametrize("name", RETURNS)
def test_exactly_as_one_by_one(name: str) -> None:
    def function(x: torch.Tensor) -> Any:
        return RETURNS[name](like(x))

    assert_results_like(fl.batch(function)(columns()), fl.one_by_one(function)(columns()))


@pytest.mark.parametrize("name", RETURNS)
def test_after_a_wait(name: str) -> None:
    def function(x: torch.Tensor) -> Any:
        y = like(x)
        return RETURNS[name](y if y.sum() > 0 else 2 * y)

    assert_results_like(fl.batch(function)(columns()), fl.one_by_one(function)(columns()))


class Program(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.twice = fl.cell(lambda x: 2 * x)

    def forward(self, x: torch.Tensor) -> Any:
        return RETURNS[self.name](self.twice(x))


@pytest.mark.parametrize("name", RETURNS)
def test_plans_are_filled_each_time_anew(name: str) -> None:
    program = Program(name)
    batched, expected = fl.batch(program), fl.one_by_one(program)(columns())
    planned = fl.plan(fl.record_each(program, columns()))
    first, second = batched.run(planned), batched.run(pickle.loads(pickle.dumps(planned)))
    assert_results_like(first, expected)
    assert_results_like(second, expected)
    assert_results_like(batched.run(planned), expected)
    if isinstance(expected[0], (list, dict)):
        third = batched.run(planned)
        assert all(one is not other for one, other in zip(first, third, strict=True))


def test_plans_of_workers() -> None:
    for name in ("OrderedDict", "defaultdict", "named tuple", "frozen dataclass", "model output", "unknown class"):
        program = Program(name)
        recordings = fl.record_each(program, columns())
        (planned,) = DataLoader(recordings, batch_size=3, collate_fn=fl.plan, num_workers=1)  # type: ignore[arg-type]
        assert_results_like(fl.batch(program).run(planned), fl.one_by_one(program)(columns()))


@pytest.mark.parametrize("way", [fl.batch, lambda function: lambda xs: _recorded(function, xs)])
def test_nothing_of_the_users_runs_twice(way: Any) -> None:
    def function(x: torch.Tensor) -> Any:
        y = double(x)
        return Frozen(y), Special(y), Plain(y), ModelOutput(y), Registered(y, 1)

    made.clear()
    results = way(function)(columns())
    assert len(results) == 3
    assert made == ["Frozen", "Special", "Plain", "ModelOutput", "Registered"] * 3


def _recorded(function: Any, xs: list[torch.Tensor]) -> list[Any]:
    return fl.batch(function).run(fl.plan(fl.record_each(function, xs)))


# ---- Which object it is.


def shared_list(x: Any) -> Any:
    a = [x]
    return a, a, {"a": a}


def shared_tensor(x: Any) -> Any:
    states = [x, x + 1, x + 2]
    return states, states[-1], (states[-1], x)


def shared_tuple(x: Any) -> Any:
    pair = (x, [x])
    return [pair, pair, Record("r", pair)]


def of_itself(x: Any) -> Any:
    a: list[Any] = [x]
    a.append(a)
    return a


def objects_in_a_ring(x: Any) -> Any:
    parent, child = Plain(x), Plain(1)
    parent.child, child.parent = child, parent  # type: ignore[attr-defined]
    return child


@pytest.mark.parametrize("function", [shared_list, shared_tensor, shared_tuple, of_itself, objects_in_a_ring])
@pytest.mark.parametrize("way", [fl.batch, lambda function: lambda xs: _recorded(function, xs)])
def test_what_is_one_object_comes_back_as_one(function: Any, way: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        return function(double(x))

    assert_results_like(way(program)(columns()), fl.one_by_one(program)(columns()))


def test_the_object_itself_comes_back() -> None:
    kept: list[Any] = []

    def function(x: torch.Tensor, numbers: list[int], tree: Any) -> Any:
        tree.state = double(x)
        result = {"state": tree.state, "numbers": numbers, "states": [tree.state]}
        kept.append(result)
        return result, tree, numbers

    numbers, trees = [[1, 2], [3]], [Plain(1), types.SimpleNamespace()]
    results = fl.batch(function)(columns()[:2], numbers, trees)
    for (result, tree, given), own, number, example in zip(results, kept, numbers, trees, strict=True):
        assert result is own
        assert tree is example
        assert given is number
        assert type(tree.state) is torch.Tensor  # type: ignore[attr-defined]
        assert result["state"] is tree.state  # type: ignore[attr-defined]
        assert result["states"][0] is tree.state  # type: ignore[attr-defined]


def test_a_list_that_examples_share() -> None:
    def program() -> Callable[[torch.Tensor], Any]:
        history: list[Any] = []

        def function(x: torch.Tensor) -> Any:
            history.append(double(x))
            return history

        return function

    results, expected = fl.batch(program())(columns()), fl.one_by_one(program())(columns())
    assert results[0] is results[1] is results[2]
    assert [type(item) for item in results[0]] == [torch.Tensor] * 3
    for one, other in zip(results[0], expected[0], strict=True):
        assert torch.equal(one, other)


def test_what_an_example_does_not_compute_is_left_alone() -> None:
    class Counting:
        count = 0

    shared = Counting()

    def function(x: torch.Tensor) -> Any:
        shared.count += 1
        return shared, double(x)

    fl.batch(function)(columns())
    assert shared.count == 3


def test_long_chains_of_objects() -> None:
    def function(x: torch.Tensor) -> Any:
        first = last = types.SimpleNamespace(value=double(x))
        for _ in range(5_000):
            last.next = types.SimpleNamespace(value=None)
            last = last.next
        last.value = double(x) + 1
        return first

    for result, x in zip(fl.batch(function)(columns()), columns(), strict=True):
        while hasattr(result, "next"):
            result = result.next
        assert torch.equal(result.value, 2 * x + 1)


def test_gradients_reach_what_is_in_objects() -> None:
    xs = [x.requires_grad_() for x in columns()]
    results = fl.batch(lambda x: Plain(double(x)))(xs)
    sum(result.nested[0]["deep"][0].sum() for result in results).backward()
    assert all(torch.equal(x.grad, torch.full((3,), 2.0)) for x in xs)  # type: ignore[arg-type]


# ---- What cannot be.


def test_a_tensor_as_a_key_is_refused() -> None:
    with pytest.raises(FoldloomError, match="key of a dict"):
        fl.batch(lambda x: {double(x): 1})(columns())


def test_views_of_a_dict_show_the_same_dict() -> None:
    def function(x: torch.Tensor) -> Any:
        inner = {"a": double(x)}
        return types.MappingProxyType(inner), inner.values(), inner

    for proxy, values, inner in fl.batch(function)(columns()):
        assert list(map(type, values)) == [torch.Tensor]
        assert type(proxy) is types.MappingProxyType
        assert proxy["a"] is inner["a"]
        inner["b"] = 1
        assert proxy["b"] == 1


def test_a_tuple_nested_without_end_is_refused() -> None:
    def function(x: torch.Tensor) -> Any:
        result: Any = double(x)
        for _ in range(5_000):
            result = (result, 1)
        return result

    limit = sys.getrecursionlimit()  # others may have raised it, as exported files do
    sys.setrecursionlimit(1_000)
    try:
        with pytest.raises(FoldloomError, match="too deeply"):
            fl.batch(function)(columns())
    finally:
        sys.setrecursionlimit(limit)


# ---- Stacked.


@pytest.mark.parametrize(
    "name",
    ["OrderedDict", "defaultdict", "named tuple", "torch.return_types.max", "dataclass", "frozen dataclass",
     "subclass of a dataclass", "attrs", "subclass of dict", "SimpleNamespace", "model output", "unknown class",
     "registered class", "dict in its order", "empty"],
)  # fmt: skip
def test_stacked_containers_keep_their_classes(name: str) -> None:
    def function(x: torch.Tensor) -> Any:
        return RETURNS[name](double(x))

    expected = fl.one_by_one(function, stack=True)(columns())
    actual = fl.batch(function, stack=True)(columns())
    plain = fl.one_by_one(function)(columns())[0]
    assert type(actual) is type(expected) is type(plain)
    assert_stacked_like(actual, expected)
    assert_stacked_like(fl.batch(function, stack=True).run(fl.plan(fl.record_each(function, columns()))), expected)


def assert_stacked_like(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    if isinstance(expected, fl.Ragged):
        torch.testing.assert_close(actual.values, expected.values)
        torch.testing.assert_close(actual.lengths, expected.lengths)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected)
    elif not isinstance(expected, (int, str, type(None), type)):
        for part, expected_part in zip(parts_of(actual), parts_of(expected), strict=True):
            assert_stacked_like(part, expected_part)


def test_stacked_dicts_of_one_set_of_keys_in_two_orders() -> None:
    def function(x: torch.Tensor, turned: bool) -> Any:
        y = double(x)
        return {"b": y + 1, "a": y} if turned else {"a": y, "b": y + 1}

    stacked = fl.batch(function, stack=True)(columns(), [False, True, True])
    assert torch.equal(stacked["a"], 2 * torch.stack(columns()))
    assert torch.equal(stacked["b"], 2 * torch.stack(columns()) + 1)


def test_stacked_sets_are_refused() -> None:
    with pytest.raises(FoldloomError, match="a set"):
        fl.batch(lambda x: {double(x)}, stack=True)(columns())
