"""What is planned in C looks at its columns first: called with any others, it raises, and writes nowhere else.

`make sanitize` runs this with AddressSanitizer, which sees what a process survives.
"""

from __future__ import annotations

import random
import resource
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import foldloom as fl
from foldloom.errors import PlanError
from foldloom.graph import ANY, CONSTANT, Graph, Op, Type, merge
from foldloom.planning import layout, native
from foldloom.planning.placement import place
from foldloom.planning.schedulers import ByAgenda, ByDepth, by_agenda, by_depth
from foldloom.tracing.building import histories
from foldloom.tracing.flushing import pending
from tests.graph.sketches import balanced, chain
from tests.never_wrong.checking import exit_code_of_a_child

pytestmark = pytest.mark.skipif(
    native.planning is None, reason="C is off (FOLDLOOM_NO_C=1), or there was no compiler where Foldloom was installed"
)

FUNCTIONS = ("by_depth", "by_agenda", "arrange", "lay_out", "histories", "cut")
EXTREMES = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 100, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
REFUSALS = (IndexError, TypeError, ValueError, OverflowError, MemoryError, PlanError, BufferError, SystemError)

Calls = dict[str, list[tuple[Any, ...]]]


def ragged_graph() -> Graph:
    word, rows = Type((), "int64"), Type((ANY,), "int64")
    ops = (Op(CONSTANT, (), (word,)), Op("turn", (rows, word), (rows,)), Op("sum", (rows,), (word,)))
    return Graph(
        ops,
        np.array([0, 0, 1, 2]),
        np.array([0, 1, 0, 2, 3]),
        np.array([0, 0, 1, 2]),
        np.array([4]),
        np.array([4, 3]),
        5,
        np.array([2, 2, 2]),
    )


def well_formed_calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What the functions in C are called with."""
    calls: Calls = {name: [] for name in FUNCTIONS}

    def noting(name: str) -> Any:
        def call(*args: Any) -> Any:
            calls[name].append(tuple(arg.copy() if isinstance(arg, (np.ndarray, bytearray)) else arg for arg in args))
            return getattr(native.planning, name)(*args)

        return call

    spy = SimpleNamespace(**{name: noting(name) for name in FUNCTIONS})
    for module in (layout, pending, by_agenda, by_depth, histories):
        monkeypatch.setattr(module, "planning", spy)
    for graph in (merge([chain(3), balanced(2)]), ragged_graph()):
        for scheduler in (ByDepth(), ByAgenda()):
            place(graph, scheduler.schedule(graph))
    layer = torch.nn.Linear(3, 3)

    def function(x: torch.Tensor) -> Any:
        for _ in range(3):
            x = layer(x) if layer(x).sum() > 0 else torch.stack([x, x]).mean(0)
        return x

    fl.batch(function, automatic_cells=False)([torch.randn(3) for _ in range(4)])
    monkeypatch.undo()
    assert all(calls.values()), {name: len(found) for name, found in calls.items()}
    return calls


def spoiled(value: Any, source: random.Random) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, (tuple, list)):
        if source.random() < 0.8 or not isinstance(value, (tuple, list)):
            return value
        return type(value)(source.sample(list(value), source.randrange(len(value) + 1)))
    if isinstance(value, int):
        return source.choice(EXTREMES)
    if isinstance(value, bytearray):
        return bytearray(source.randbytes(source.randrange(40)))
    column = np.array(value)
    how = source.randrange(6)
    if how == 0:
        return column[: source.randrange(len(column) + 1)].copy()
    if how == 1:
        return np.append(column, source.choices(EXTREMES, k=source.randint(1, 9)))
    if how == 2:
        return column.astype(source.choice((np.int32, np.float64, np.uint64)))
    if how == 3:
        return np.frombuffer(bytes(1) + column.tobytes(), np.int64, len(column), offset=1)
    for _ in range(source.randint(1, 3)):
        if len(column):
            column[source.randrange(len(column))] = source.choice((*EXTREMES, *column.tolist()))
    return column


def limit_memory(more: int) -> None:
    """A graph may say that it makes any number of rows; there is no memory for all of them."""
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + more, resource.RLIM_INFINITY))


def call_with_anything(calls: Calls, seeds: range) -> None:
    limit_memory(1 << 31)
    returned = 0
    for seed in seeds:
        source = random.Random(seed)
        name = source.choice(FUNCTIONS)
        args = list(source.choice(calls[name]))
        for place_of_argument in source.sample(range(len(args)), source.choice((1, 1, 2))):
            args[place_of_argument] = spoiled(args[place_of_argument], source)
        args = [arg.copy() if isinstance(arg, np.ndarray) and arg.flags.aligned else arg for arg in args]
        try:
            getattr(native.planning, name)(*args)
            returned += 1
        except REFUSALS:
            continue
    assert returned < len(seeds), "nothing was refused"


def test_columns_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = well_formed_calls(monkeypatch)
    assert exit_code_of_a_child(lambda: call_with_anything(calls, range(6000)), 60) == 0


def test_runs_of_another_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of such a run would be written behind those of its node."""
    assert native.planning is not None
    args = list(well_formed_calls(monkeypatch)["lay_out"][0])
    args[5] = args[5][::-1].copy()
    with pytest.raises(IndexError, match=r"another op|other numbers of nodes"):
        native.planning.lay_out(*args)


def test_depths_whose_product_with_the_ops_overflows() -> None:
    assert native.planning is not None
    ops, depths = np.array([0, 1]), np.array([0, 2**31 - 2])
    for count in (2**62, 2**33, -1):
        with pytest.raises(IndexError, match="the number of ops"):
            native.planning.by_depth(ops, depths, count)
    with pytest.raises(IndexError, match="depth 2147483646 is not from 0 to 2"):
        native.planning.by_depth(ops, depths, 2)


def test_a_node_that_reads_what_is_made_after_it() -> None:
    graph = chain(3)
    backwards = Graph(**{**graph.__getstate__(), "operands": graph.operands[::-1].copy()})
    with pytest.raises((IndexError, PlanError)):
        place(backwards, ByAgenda().schedule(backwards)).check()


def test_records_that_are_no_named_tuples() -> None:
    assert native.planning is not None
    with pytest.raises(TypeError, match="no named tuple"):
        native.planning.bind(dict, dict, dict, (1, 2, 3), PlanError)
    with pytest.raises(TypeError, match="no error"):
        native.planning.bind(tuple, tuple, tuple, (1, 2, 3), int)  # type: ignore[arg-type]
