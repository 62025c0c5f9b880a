"""Finding 1: what several examples change together is as in a loop, or refused in words; never silently another."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import random
import tempfile
import threading
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import foldloom as fl
from tests.never_wrong.checking import Program, check_program, exit_code_of_a_child, linear, vectors

COUNTER = 0
LAST: Any = None


def shared_list() -> Program:
    inputs, seen = vectors(), []

    def function(x: torch.Tensor) -> Any:
        seen.append((x * 2).sum().item())
        seen.append(len(seen))
        return x * len(seen)

    return Program(function, [inputs], left=lambda: seen)


def shared_list_of_values() -> Program:
    inputs, seen = vectors(), [torch.zeros(3, dtype=torch.float64)]

    def function(x: torch.Tensor) -> Any:
        positive = bool((x * 2).sum() > 0)
        seen.append((x * 3).detach())
        return x + seen[-2], positive

    return Program(function, [inputs], inputs)


def shared_stack() -> Program:
    """A list that is emptied at the start of each example, as parsers do."""
    inputs = vectors()
    stack: list[Any] = []

    def function(x: torch.Tensor) -> Any:
        stack.clear()
        for row in x:
            stack.append(row * 2)
            if len(stack) > 1 and stack[-1] > stack[-2]:
                stack.append(stack.pop() + stack.pop())
        return list(stack)

    return Program(function, [inputs], inputs)


def memo() -> Program:
    layer, inputs, cache = linear(), vectors(4), {}

    def function(x: torch.Tensor, key: int) -> Any:
        positive = bool(layer(x).sum() > 0)
        if key not in cache:
            cache[key] = layer(x)
        return cache[key] * 2, positive

    return Program(function, [inputs, [0, 1, 0, 1]], [*inputs, *layer.parameters()])


def memo_without_waiting() -> Program:
    layer, inputs, cache = linear(), vectors(4), {}

    def function(x: torch.Tensor, key: int) -> Any:
        if key not in cache:
            cache[key] = layer(x)
        return cache[key] * 2

    return Program(function, [inputs, [0, 1, 0, 1]], [*inputs, *layer.parameters()])


def closure() -> Program:
    inputs = vectors()
    h: Any = None

    def function(x: torch.Tensor) -> Any:
        nonlocal h
        h = x * 2
        if h.sum() > 0:
            return h + 1
        return h

    return Program(function, [inputs], inputs)


def closure_that_counts() -> Program:
    inputs, count = vectors(), 0

    def function(x: torch.Tensor) -> Any:
        nonlocal count
        count += 1
        positive = bool((x * 2).sum() > 0)
        count += 1
        return count, positive

    return Program(function, [inputs], left=lambda: count)


def global_value() -> Program:
    inputs = vectors()

    def function(x: torch.Tensor) -> Any:
        global LAST
        LAST = x * 2
        return LAST + 1 if LAST.sum() > 0 else LAST

    return Program(function, [inputs], inputs)


def global_counter() -> Program:
    global COUNTER
    COUNTER, inputs = 0, vectors()

    def function(x: torch.Tensor) -> Any:
        global COUNTER
        positive = bool((x * 2).sum() > 0)
        COUNTER += 1
        return COUNTER, positive

    def twice(x: torch.Tensor) -> Any:
        return function(x), function(x)

    return Program(twice, [inputs], left=lambda: COUNTER)


def object_with_attributes() -> Program:
    inputs, state = vectors(), SimpleNamespace(h=None)

    def function(x: torch.Tensor) -> Any:
        state.h = x * 2
        return state.h + 1 if state.h.sum() > 0 else state.h

    return Program(function, [inputs], inputs)


def class_attribute() -> Program:
    class State:
        h: Any = None

    inputs = vectors()

    def function(x: torch.Tensor) -> Any:
        State.h = x * 2
        return State.h + 1 if State.h.sum() > 0 else State.h

    return Program(function, [inputs], inputs)


def bound_method() -> Program:
    class Parser:
        def __init__(self) -> None:
            self.stack: list[Any] = []

        def parse(self, x: torch.Tensor) -> Any:
            self.stack = [row * 2 for row in x]
            while len(self.stack) > 1 and self.stack[-1] > -1:
                self.stack.append(self.stack.pop() + self.stack.pop())
            return self.stack

    inputs = vectors()
    return Program(Parser().parse, [inputs], inputs)


def default_argument() -> Program:
    inputs = vectors()

    def function(x: torch.Tensor, seen: list[Any] = []) -> Any:  # noqa: B006
        positive = bool((x * 2).sum() > 0)
        seen.append(positive)
        return len(seen), x * len(seen)

    return Program(function, [inputs], inputs)


def attribute_of_a_function() -> Program:
    inputs = vectors()

    def function(x: torch.Tensor) -> Any:
        function.h = x * 2  # type: ignore[attr-defined]
        positive = bool(function.h.sum() > 0)  # type: ignore[attr-defined]
        return function.h, positive  # type: ignore[attr-defined]

    return Program(function, [inputs], inputs)


def iterator() -> Program:
    inputs, numbers = vectors(), itertools.count()

    def function(x: torch.Tensor) -> Any:
        first = next(numbers)
        positive = bool((x * 2).sum() > 0)
        return first, next(numbers), positive

    return Program(function, [inputs])


def tensor_changed_in_place() -> Program:
    inputs, total = vectors(), torch.zeros(3, dtype=torch.float64)

    def function(x: torch.Tensor) -> Any:
        total.add_((x * 2).detach())
        positive = bool((x * 2).sum() > 0)
        return total.clone(), positive

    return Program(function, [inputs], left=lambda: total)


def tensor_row_set() -> Program:
    inputs, memory = vectors(), torch.zeros(4, 3, dtype=torch.float64)

    def function(x: torch.Tensor) -> Any:
        memory[0] = x.detach()
        positive = bool((x * 2).sum() > 0)
        return memory[0] * 2, positive

    return Program(function, [inputs], left=lambda: memory)


def python_random() -> Program:
    inputs = vectors()
    random.seed(3)

    def function(x: torch.Tensor) -> Any:
        first = random.random()
        positive = bool((x * 2).sum() > 0)
        return first, random.random(), positive

    return Program(function, [inputs])


SHARED: dict[str, Callable[[], Program]] = {
    build.__name__: build
    for build in (
        shared_list,
        shared_list_of_values,
        shared_stack,
        memo,
        memo_without_waiting,
        closure,
        closure_that_counts,
        global_value,
        global_counter,
        object_with_attributes,
        class_attribute,
        bound_method,
        default_argument,
        attribute_of_a_function,
        iterator,
        tensor_changed_in_place,
        tensor_row_set,
    )
}


@pytest.mark.parametrize(
    "name",
    list(SHARED),
)
def test_shared_objects_are_as_in_a_loop_or_refused(name: str) -> None:
    check_program(SHARED[name], or_refused=True)


def test_random_of_python_is_shared() -> None:
    """The guide says what holds: before examples wait, they draw as in a loop, and later in another order. Nobody draws what another drew."""
    program = python_random()
    expected = [program.function(*args) for args in zip(*program.columns, strict=True)]
    runs = []
    for _ in range(2):
        random.seed(3)
        runs.append(fl.batch(program.function)(*program.columns))
    assert runs[0] == runs[1]
    drawn, should_be = (
        [number for first, second, _ in found for number in (first, second)] for found in (runs[0], expected)
    )
    assert sorted(drawn) == sorted(should_be)
    assert drawn[0] == should_be[0]


def redirected() -> Program:
    inputs = vectors()

    def function(x: torch.Tensor) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            print("before")
            print("positive" if (x * 2).sum() > 0 else "negative")
        return out.getvalue()

    return Program(function, [inputs])


FACTOR = 2.0


def globals_by_name() -> Program:
    inputs = vectors()

    def function(x: torch.Tensor, number: int) -> Any:
        before = FACTOR
        globals()["FACTOR"] = before + number
        y = x * FACTOR if (x * 2).sum() > 0 else x * FACTOR * 2
        z = y * FACTOR
        globals()["FACTOR"] = before
        return z

    return Program(function, [inputs, [1, 2, 3]], inputs, left=lambda: FACTOR)


def warnings_caught() -> Program:
    inputs = vectors()

    def function(x: torch.Tensor) -> int:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if (x * 2).sum() > 0:
                warnings.warn("positive", UserWarning, stacklevel=1)
            warnings.warn("done", UserWarning, stacklevel=1)
        return len(caught)

    return Program(function, [inputs], left=lambda: len(warnings.filters))


def other_folder() -> Program:
    inputs = vectors()
    folders = [os.path.realpath(tempfile.gettempdir()), "/", os.path.realpath(os.path.dirname(__file__))]

    def function(x: torch.Tensor, folder: str) -> Any:
        with contextlib.chdir(folder):
            positive = bool((x * 2).sum() > 0)
            return os.getcwd(), positive

    return Program(function, [inputs, folders], left=os.getcwd)


HELD = {build.__name__: build for build in (redirected, globals_by_name, warnings_caught, other_folder)}


@pytest.mark.parametrize("name", list(HELD))
def test_held_over_a_wait(name: str) -> None:
    before = os.getcwd()
    try:
        check_program(HELD[name], or_refused=True)
    finally:
        os.chdir(before)


@pytest.mark.parametrize("kind", ["Lock", "RLock"])
def test_a_lock_held_over_a_wait_does_not_hang(kind: str) -> None:
    def build() -> Program:
        inputs, lock = vectors(), getattr(threading, kind)()

        def function(x: torch.Tensor) -> Any:
            with lock:
                return (x * 2).sum().item()

        return Program(function, [inputs])

    assert exit_code_of_a_child(lambda: check_program(build, or_refused=True), 2) == 0
