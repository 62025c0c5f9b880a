"""Segments: parts of functions that are recorded as one node, where the functions as a whole are not."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foldloom as fl
from foldloom.tracing import fast_path
from foldloom.tracing.automatic.flow import Flow
from foldloom.tracing.automatic.rewriting import Shortcut, Start, may_start, with_shortcuts
from foldloom.tracing.automatic.segments import divisions
from tests.never_wrong.checking import Program, check_program
from tests.tracing.automatic.random_programs import captured_at_once

pytestmark = pytest.mark.skipif(not fast_path.is_compiled, reason="automatic cells need the compiled parts")


@pytest.fixture(autouse=True)
def _captured_at_once() -> Iterator[None]:
    with captured_at_once():
        yield


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Linear(3, 3, dtype=torch.float64), nn.Linear(3, 3, dtype=torch.float64)
        self.scale = 0.5

    def forward(self, words: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        h, kept = words[0] * 0, []
        for word in words:
            z = torch.tanh(self.w(word) + self.u(h))
            h = z * self.scale + h
            kept.append(torch.sigmoid(h) * 2)
        return h, kept


def hits(function: Callable[..., Any]) -> int:
    """How often segments of a function were recorded as one node."""
    division = divisions.get(function.__code__)
    sites = [] if division is None else division.sites.values()
    return sum(segment.called.hits for site in sites for segment in site.segments)


def words_of(*lengths: int) -> list[list[Tensor]]:
    torch.manual_seed(1)
    return [[torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(length)] for length in lengths]


def steps_of(model: Callable[..., Any], examples: list[Any], **how: Any) -> int:
    for _ in range(3):
        fl.batch(model, **how)(examples)
    with fl.profile() as profile:
        fl.batch(model, **how)(examples)
    return sum(len(run.plan.steps) for run in profile.runs)


def test_the_body_of_a_loop_is_one_node_whatever_the_length() -> None:
    torch.manual_seed(0)
    model, words = Net(), words_of(1, 4, 2, 7, 3)

    def build() -> Program:
        return Program(model, [words], list(model.parameters()) + [word for row in words for word in row])

    check_program(build)
    assert steps_of(model, words) * 3 < steps_of(model, words, automatic_cells=False)
    assert hits(Net.forward) > 20


def test_values_are_the_same_as_one_by_one_after_an_attribute_changed() -> None:
    torch.manual_seed(0)
    model, words = Net(), words_of(2, 3, 4)
    for scale in (0.5, 0.25, 2.0, 0.5):
        model.scale = scale
        for found, expected in zip(fl.batch(model)(words), fl.one_by_one(model)(words), strict=True):
            torch.testing.assert_close(found, expected)


def test_what_a_branch_waits_for_is_computed_in_one_node() -> None:
    def halting(x: Tensor) -> tuple[Tensor, int]:
        steps = 0
        while torch.sigmoid(x * 2).sum() < 2.0 and steps < 6:
            x = torch.relu(x) + 0.3 + x * 0.1
            steps += 1
        return x, steps

    starts = [torch.full((3,), -0.4 * number, dtype=torch.float64) for number in range(6)]
    for _ in range(3):
        found, expected = fl.batch(halting)(starts), fl.one_by_one(halting)(starts)
        torch.testing.assert_close(found, expected)
    assert hits(halting) > 10


def test_around_a_recursive_call() -> None:
    def depth(node: Any, x: Tensor) -> Tensor:
        if node is None:
            return torch.tanh(x) * 0.5 + 1
        left = depth(node[0], x * 2)
        right = depth(node[1], x - 1)
        return torch.sigmoid(left) * right + left

    trees = [(None, None), ((None, None), None), (((None, None), (None, None)), None)]
    columns: list[list[Any]] = [trees * 2, list(torch.randn(6, 2, dtype=torch.float64))]
    for _ in range(3):
        torch.testing.assert_close(fl.batch(depth)(*columns), fl.one_by_one(depth)(*columns))
    assert hits(depth) > 10


def test_lists_are_appended_to_in_order_and_once() -> None:
    def program(x: Tensor) -> list[Tensor]:
        outs: list[Tensor] = []
        same = outs
        for number in range(len("abc")):
            outs.append(torch.tanh(x) * 2)
            same.append(torch.sigmoid(x) + 1)
            if len(outs) != 2 * number + 2:
                raise AssertionError(len(outs))
        return outs

    xs = list(torch.randn(5, 3, dtype=torch.float64))
    for _ in range(3):
        torch.testing.assert_close(fl.batch(program)(xs), fl.one_by_one(program)(xs))


def test_values_of_any_number_of_rows() -> None:
    model = Net()

    def attend(words: list[Tensor], query: Tensor) -> Tensor:
        rows = torch.stack(words)
        for _ in words[:2]:
            weights = torch.softmax(torch.tanh(model.w(rows)) @ query, 0)
            query = torch.tanh(weights @ rows + query)
        return query

    words = words_of(1, 2, 3, 4, 5)
    columns: list[Any] = [words, [row[0].detach() for row in words]]

    def build() -> Program:
        return Program(attend, columns, list(model.parameters()))

    check_program(build)
    for _ in range(3):
        torch.testing.assert_close(fl.batch(attend)(*columns), fl.one_by_one(attend)(*columns))
    assert hits(attend) > 5


def test_a_variable_that_was_deleted_stays_so() -> None:
    def program(x: Tensor, number: int) -> Tensor:
        for _ in "ab":
            y = torch.tanh(x) * 2
            z = torch.sigmoid(y) + y
            del y
            x = z * 0.5 + x
        if number == 5:
            return y  # noqa: F821 (which is not there)
        return x

    xs = list(torch.randn(6, 3, dtype=torch.float64))
    for numbers in ([0] * 6, [0] * 6, [0, 0, 0, 0, 0, 5]):
        outcomes = []
        for run in (fl.batch(program), fl.one_by_one(program)):
            try:
                outcomes.append(run(xs, numbers))
            except UnboundLocalError as error:
                outcomes.append(str(error).split("\n")[0])
        torch.testing.assert_close(outcomes[0], outcomes[1]) if numbers[-1] == 0 else None
        assert numbers[-1] == 0 or outcomes[0] == outcomes[1]


def raising(words: list[Tensor], number: int) -> Tensor:
    h = words[0]
    for word in words:
        h = torch.tanh(h) * 0.5 + word
        if number == 3:
            raise KeyError("no such word")
        h = torch.sigmoid(h) + h * 2
    return h


def test_tracebacks_have_the_lines_of_the_program() -> None:
    words = words_of(2, 2, 2, 2)
    for _ in range(3):
        fl.batch(raising)(words, [0, 1, 2, 0])
    assert hits(raising)
    with pytest.raises(KeyError) as caught:
        fl.batch(raising)(words, [0, 1, 2, 3])
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.filename == __file__
    assert last.line == 'raise KeyError("no such word")'


def test_functions_look_as_they_did() -> None:
    code = Net.forward.__code__
    for _ in range(3):
        fl.batch(Net())(words_of(3, 2))
    assert Net.forward.__code__ is code
    assert all(isinstance(constant, (int, float, str, tuple, type(None), CodeType)) for constant in code.co_consts)


def test_who_traces_sees_every_line() -> None:
    torch.manual_seed(0)
    model, words = Net(), words_of(2, 3)
    for _ in range(3):
        fl.batch(model)(words)
    lines: list[int] = []

    def trace(frame: Any, event: str, _: object) -> Any:
        if frame.f_code.co_name == "forward" and frame.f_code.co_filename == __file__ and event == "line":
            lines.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        fl.batch(model, scheduler=fl.ByDepth())(words)
    finally:
        sys.settrace(before)
    body = Net.forward.__code__.co_firstlineno + 3
    assert lines.count(body) == 5


def test_local_variables_can_be_looked_at() -> None:
    def program(x: Tensor) -> tuple[list[str], Tensor]:
        for _ in "ab":
            y = torch.tanh(x) * 2
            x = torch.sigmoid(y) + y
        return sorted(locals()), x

    xs = list(torch.randn(4, 3, dtype=torch.float64))
    for _ in range(3):
        found, expected = fl.batch(program)(xs), fl.one_by_one(program)(xs)
        assert [names for names, _ in found] == [names for names, _ in expected]


def test_models_are_not_kept_alive() -> None:
    model = Net()
    for _ in range(3):
        fl.batch(model)(words_of(3, 2))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_new_model_has_segments_too() -> None:
    words = words_of(4, 4, 4)
    for _ in range(3):
        model = Net()
        before = hits(Net.forward)
        for _ in range(3):
            torch.testing.assert_close(fl.batch(model)(words), fl.one_by_one(model)(words))
        assert hits(Net.forward) > before


def test_other_threads_run_python() -> None:
    torch.manual_seed(0)
    model, words = Net(), words_of(4, 3, 4)
    expected = fl.one_by_one(model)(words)
    failures: list[BaseException] = []

    def work(run: Callable[..., Any]) -> None:
        try:
            for _ in range(10):
                torch.testing.assert_close(run(words), expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(run,)) for run in (fl.batch(model), fl.one_by_one(model)) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ---- The code with shortcuts.


class Never:
    """Stands before a segment and never records it."""

    def __init__(self, values: int) -> None:
        self.answer = None if values else False

    def __call__(self) -> Any:
        return self.answer


def everywhere(code: CodeType) -> CodeType:
    """A function with shortcuts wherever there is room."""
    flow = Flow(code)
    starts = [
        Start(place, (Shortcut(Never(place % 3), place, place % 3, None),), Never(0))
        for place in range(len(flow.instructions))
        if may_start(code, flow, place)
    ]
    made = with_shortcuts(code, flow, starts)
    assert made is not None
    return made


def tangled(numbers: list[int]) -> Any:
    total = 0
    seen: list[Any] = []
    for number in numbers:
        try:
            if number % 3 == 0:
                continue
            with open("/dev/null") as file:
                total += number // (number - 5) + len(file.read())
        except ZeroDivisionError as error:
            seen.append(type(error).__name__)
        else:
            seen.append([x * y for x in range(number) for y in (number, total) if x])
        finally:
            total += 1
        while total > 50:
            total -= number if number > 10 else 7
    return total, seen, {key: value for key, value in enumerate(numbers) if value}, (lambda z: z + total)(1)


def test_code_with_shortcuts_that_never_hold_does_the_same() -> None:
    made = everywhere(tangled.__code__)
    expected = tangled(list(range(30)))
    original = tangled.__code__
    try:
        tangled.__code__ = made
        assert tangled(list(range(30))) == expected
    finally:
        tangled.__code__ = original


def test_positions_of_code_with_shortcuts() -> None:
    code = tangled.__code__
    made = everywhere(code)
    old, new = list(code.co_positions()), list(made.co_positions())
    assert new[: len(old)] == old
    assert len(new) == len(made.co_code) // 2
    assert {line for line, *_ in new if line} == {line for line, *_ in old if line}


def test_loops_without_an_end_of_their_own_are_not_unrolled() -> None:
    """They end by a `break` or a `return`; following them would take time and memory without bound."""

    def first(x: Tensor) -> Any:
        for n in range(10**12):
            y = torch.tanh(x + n) * 2
            if y.sum() > 0:
                break
        return y

    def second(x: Tensor) -> Any:
        for n in range(10**30):
            x = torch.tanh(x) * 2
            if n == 3:
                break
        return x

    for function in (first, second):
        inputs = [torch.randn(3, dtype=torch.float64) for _ in range(9)]
        batched, expected = fl.batch(function), [function(x) for x in inputs]
        for _ in range(5):
            torch.testing.assert_close(batched._together([(x,) for x in inputs]), expected)
