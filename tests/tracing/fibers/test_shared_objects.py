"""Lists, dicts, globals and other things that examples share: exactly as in a loop, or an error."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import warnings
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom.errors import SharedStateError
from foldloom.tracing.flushing.flush import Flushes

XS = [torch.tensor([float(n), 1.0 - 2 * (n % 2)]) for n in range(6)]

counter = 0
history: list[float] = []
totals: dict[str, float] = {}


@dataclass
class State:
    count: int = 0

    def grow(self) -> None:
        self.count += 1


shared = State()


def plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def check(make: Callable[[], Any]) -> None:
    assert plain(fl.batch(make())(XS)) == plain([make_one(x) for make_one in [make()] for x in XS])


def by_nonlocal() -> Any:
    count = 0

    def f(x: Any) -> Any:
        nonlocal count
        if x.sum() > 1:
            count += 1
        return x * count

    return f


def by_global() -> Any:
    global counter
    counter = 0

    def f(x: Any) -> Any:
        global counter
        if x.sum() > 1:
            counter += 1
        return x * counter

    return f


def by_list() -> Any:
    seen: list[float] = []

    def f(x: Any) -> Any:
        seen.append((x * 2).sum().item())
        return x * len(seen), list(seen)

    return f


def by_list_of_the_module() -> Any:
    history.clear()

    def f(x: Any) -> Any:
        if x.sum() > 1:
            history.append(1.0)
        return x * len(history)

    return f


def by_dict() -> Any:
    totals.clear()

    def f(x: Any) -> Any:
        total = x.sum().item()
        totals["all"] = totals.get("all", 0.0) + total
        return x + totals["all"]

    return f


def by_default_dict() -> Any:
    table: Any = defaultdict(int)

    def f(x: Any) -> Any:
        table["positive" if x.sum() > 1 else "other"] += 1
        return x * table["positive"]

    return f


def by_set_and_deque() -> Any:
    known: set[float] = set()
    last: deque[float] = deque(maxlen=2)

    def f(x: Any) -> Any:
        known.add(x.sum().item())
        last.appendleft(x[0].item())
        return x * len(known) + sum(last)

    return f


def by_default_argument() -> Any:
    def f(x: Any, memo: list[float] = []) -> Any:  # noqa: B006
        return helper(x) * len(memo)

    def helper(x: Any) -> Any:
        nonlocal_state.count += 1
        return x * nonlocal_state.count if x.sum() > 1 else x

    nonlocal_state = State()
    return f


def by_object() -> Any:
    state = State()

    def f(x: Any) -> Any:
        if x.sum() > 1:
            state.count += 1
        return x * state.count

    return f


def by_method_of_an_object() -> Any:
    state = State()

    def f(x: Any) -> Any:
        if x.sum() > 1:
            state.grow()
        return x * state.count

    return f


def by_array() -> Any:
    counts = np.zeros(2)

    def f(x: Any) -> Any:
        counts[int(x.sum() > 1)] += 1
        return x * float(counts[1])

    return f


def by_class() -> Any:
    class Totals:
        count = 0

    Totals.__module__ = __name__

    def f(x: Any) -> Any:
        if x.sum() > 1:
            Totals.count += 1
        return x * Totals.count

    return f


def in_a_nested_function() -> Any:
    stack: list[float] = []

    def f(x: Any) -> Any:
        def push() -> None:
            stack.append(x[0].item())

        if x.sum() > 1:
            push()
        return x * len(stack)

    return f


def under_a_lock() -> Any:
    lock = threading.Lock()

    def f(x: Any) -> Any:
        with lock:
            return x + 1 if x.sum() > 1 else x

    return f


PROGRAMS = [
    by_nonlocal, by_global, by_list, by_list_of_the_module, by_dict, by_default_dict, by_set_and_deque, by_default_argument,
    by_object, by_method_of_an_object, by_array, by_class, in_a_nested_function, under_a_lock,
]  # fmt: skip


@pytest.mark.parametrize("make", PROGRAMS)
def test_as_in_a_loop(make: Callable[[], Any]) -> None:
    check(make)


def test_a_change_that_the_code_does_not_tell_of_is_an_error() -> None:
    seen: list[Any] = []

    def push(items: list[Any], x: Any) -> None:
        items.append(x)

    def f(x: Any) -> Any:
        if x.sum() > 1:
            push(seen, x[0].item())
        return x * len(seen)

    with pytest.raises(SharedStateError, match="changed `seen` of the enclosing function") as caught:
        fl.batch(f)(XS)
    assert "test_shared_objects.py" in str(caught.value)


def test_an_example_that_does_not_wait_changes_something() -> None:
    seen: list[Any] = []

    def f(x: Any, waits: bool) -> Any:
        items = (lambda: seen)()
        if not waits:
            items.append(1)
            return x
        return x + len(seen) if x.sum() > 0 else x * len(seen)

    with pytest.raises(SharedStateError, match="example 1 has changed `seen`"):
        fl.batch(f)(XS[:3], [True, False, True])
    assert plain(fl.batch(f)(XS[:2], [False, False])) == plain(XS[:2])


def test_a_change_by_another_name() -> None:
    def made() -> Any:
        seen: list[Any] = []

        def f(x: Any, waits: bool) -> Any:
            items = seen
            if not waits:
                items.append(1)
                return x
            return x + len(seen) if x.sum() > 0 else x * len(seen)

        return f

    columns = XS[:3], [True, False, True]
    assert plain(fl.batch(made())(*columns)) == plain(fl.one_by_one(made())(*columns))


def test_reading_what_is_shared_costs_no_round() -> None:
    table, words = {n: n + 1 for n in range(1000)}, list(range(1000))
    parts: list[int] = []

    def f(x: Any) -> Any:
        own = []
        for _ in range(3):
            own.append(table[words[int(x[0] * 1)]])
        return x * sum(own)

    flush = Flushes._flush

    def counted(*args: Any, **settings: Any) -> Any:
        parts.append(1)
        return flush(*args, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flushes, "_flush", counted)
        fl.batch(f)(XS)
    assert len(parts) <= 4


def test_prints_and_warnings_go_where_the_example_sends_them() -> None:
    def f(x: Any) -> Any:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            print("before", int(x[0]))
            if x.sum() > 1:
                print("more")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("one", stacklevel=1)
            if (x * 2).sum() > 1:
                warnings.warn("two", stacklevel=1)
        return x, text.getvalue(), [str(warning.message) for warning in caught]

    def texts(results: Any) -> Any:
        return [result[1:] for result in results]

    assert texts(fl.batch(f)(XS)) == texts([f(x) for x in XS])


def test_the_working_directory(tmp_path: Path) -> None:
    here = os.getcwd()

    def f(x: Any) -> Any:
        os.chdir(tmp_path)
        found = os.getcwd() if x.sum() > 1 else ""
        os.chdir(here)
        return x, found

    assert [found for _, found in fl.batch(f)(XS)] == [found for _, found in [f(x) for x in XS]]


def test_state_of_an_argument_that_all_examples_share() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h: Any = None

    def f(x: Any, holder: Any) -> Any:
        holder.h = x * 2
        if holder.h.sum() > 2:
            holder.h = holder.h + 1
        return holder.h

    holder = Holder()
    found = fl.batch(f)(XS, [holder] * len(XS))
    assert plain(found) == plain([f(x, Holder()) for x in XS])
    assert plain(holder.h) == plain(found[-1])
