"""The law to the letter: batched is as one by one, types, gradients, what is left behind and all."""

from __future__ import annotations

import faulthandler
import math
import multiprocessing
import os
import signal
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import foldloom as fl

SCHEDULERS = (fl.ByDepth(), fl.ByAgenda())
PLAIN = (int, str, bool, bytes, complex, type(None), range, slice, torch.dtype, torch.device, torch.layout, type)


class BrokenTestError(BaseException):
    """The program fails one by one: no known fault, but a mistake in the test."""


@dataclass
class Program:
    """A function of one example with all that it needs, made anew for each run."""

    function: Callable[..., Any]
    columns: Sequence[Sequence[Any]]
    sources: Sequence[torch.Tensor] = ()
    left: Callable[[], Any] = lambda: None
    """What it left behind: attributes, globals, lists."""


# ---- Comparing.


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)):
        yield from tensors_in(vars(value))


def loss_of(value: Any) -> torch.Tensor:
    """A number that depends on every differentiable tensor of a result, on each in another way."""
    total = torch.zeros((), dtype=torch.float64)
    for number, tensor in enumerate(tensors_in(value)):
        if tensor.requires_grad:
            real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            weights = torch.cos(torch.arange(real.numel(), dtype=torch.float64) + number).view(real.shape)
            total = total + (real.double() * weights).sum()
    return total


def kind_of(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "device": tensor.device,
        "layout": tensor.layout,
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "is_inference": tensor.is_inference(),
    }


def assert_same(actual: Any, expected: Any, where: str = "results") -> None:
    assert type(actual) is type(expected), f"{where}: {type(actual)}, not {type(expected)}"
    if isinstance(expected, torch.Tensor):
        is_of, should_be = kind_of(actual), kind_of(expected)
        for name, value in should_be.items():
            assert is_of[name] == value, f"{where}: {name} is {is_of[name]}, not {value}"
        with torch.no_grad():
            exact = not expected.dtype.is_floating_point and not expected.dtype.is_complex
            rtol = 0.0 if exact else 1e-9 if expected.dtype in (torch.float64, torch.complex128) else 1e-5
            if expected.dtype in (torch.bfloat16, torch.float16):
                rtol = 1e-2
            torch.testing.assert_close(
                actual.detach(), expected.detach(), rtol=rtol, atol=rtol, equal_nan=True, msg=lambda m: f"{where}: {m}"
            )
    elif isinstance(expected, np.ndarray):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), where
        np.testing.assert_allclose(actual, expected, rtol=1e-9, err_msg=where)
    elif isinstance(expected, (float, np.floating)):
        same = (math.isnan(actual) and math.isnan(expected)) or math.isclose(actual, expected, rel_tol=1e-6)
        assert same, f"{where}: {actual}, not {expected}"
    elif isinstance(expected, Mapping):
        # The attributes of a module have no order that a program relies on.
        in_order = sorted if where == "left" else list
        assert in_order(actual) == in_order(expected), where
        if isinstance(expected, defaultdict):
            assert actual.default_factory is expected.default_factory, where
        for key in expected:
            assert_same(actual[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), f"{where}: {len(actual)} of them, not {len(expected)}"
        for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_same(one, other, f"{where}[{number}]")
        if hasattr(expected, "__dict__"):
            assert_same(vars(actual), vars(expected), f"vars of {where}")
    elif isinstance(expected, (*PLAIN, set, frozenset)) or callable(expected):
        assert actual == expected, f"{where}: {actual!r}, not {expected!r}"
    else:
        assert_same(vars(actual), vars(expected), f"vars of {where}")


def gradients(results: Any, sources: Sequence[torch.Tensor], loss: Callable[[Any], torch.Tensor]) -> list[Any]:
    """The gradient of each source, None where none arrives."""
    number = loss(results)
    if not sources or not number.requires_grad:
        return [None] * len(sources)
    found = torch.autograd.grad(number, sources, allow_unused=True)
    return [None if grad is None else grad.to_dense() for grad in found]


def torch_state() -> dict[str, Any]:
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "function modes": torch._C._len_torch_function_stack(),
    }


def assert_in_words(error: Exception, *words: str) -> None:
    """A refusal says what is refused, and names one of these words."""
    assert len(str(error)) > 20
    assert not words or any(word in str(error) for word in words), str(error)


# ---- Running.


def outcome(
    build: Callable[[], Program],
    run: Callable[[Program], list[Any]],
    loss: Callable[[Any], torch.Tensor] = loss_of,
    generator: bool = True,
) -> dict[str, Any]:
    """All that the law speaks of, after one run."""
    torch.manual_seed(7)
    program = build()
    torch.manual_seed(11)
    results = run(program)
    state = torch_state()
    if generator:
        state["generator"] = torch.get_rng_state()
    return {
        "results": results,
        "gradients": gradients(results, program.sources, loss),
        "arguments": [list(column) for column in program.columns],
        "left": program.left(),
        "state": state,
    }


def one_by_one(program: Program) -> list[Any]:
    return [program.function(*args) for args in zip(*program.columns, strict=True)]


def check_program(
    build: Callable[[], Program],
    *,
    loss: Callable[[Any], torch.Tensor] = loss_of,
    generator: bool = True,
    or_refused: bool = False,
) -> None:
    """What the law asks of a program; ``or_refused`` says that an error in words will do, but nothing silent."""
    try:
        expected = outcome(build, one_by_one, loss, generator)
    except Exception as error:
        raise BrokenTestError("The program fails one by one.") from error
    for scheduler in SCHEDULERS:

        def batched(program: Program, scheduler: fl.Scheduler = scheduler) -> list[Any]:
            return fl.batch(program.function, scheduler=scheduler)(*program.columns)

        try:
            actual = outcome(build, batched, loss, generator)
        except fl.errors.FoldloomError as error:
            if not or_refused:
                raise
            assert_in_words(error)
            continue
        for part in expected:
            assert_same(actual[part], expected[part], part)


def check(
    function: Callable[..., Any],
    *columns: Sequence[Any],
    sources: Iterable[torch.Tensor] = (),
    loss: Callable[[Any], torch.Tensor] = loss_of,
    or_refused: bool = False,
) -> None:
    """What the law asks of a function that changes nothing outside."""
    program = Program(function, columns, list(sources))
    check_program(lambda: program, loss=loss, or_refused=or_refused)


def flushes(function: Callable[..., Any], *columns: Sequence[Any]) -> int:
    """How often a batch stopped to compute what somebody waited for."""
    with fl.profile() as profile:
        fl.batch(function)(*columns)
    return sum(run.part.demand is not None for run in profile.runs)


def steps_run(function: Callable[..., Any], *columns: Sequence[Any], batches: int = 1) -> int:
    """The steps of the last of some batches, of programs that ask for values too."""
    batched = fl.batch(function)
    for _ in range(batches - 1):
        batched(*columns)
    with fl.profile() as profile:
        batched(*columns)
    return sum(len(run.plan.steps) for run in profile.runs)


def steps_of(function: Callable[..., Any], *columns: Sequence[Any]) -> int:
    return fl.plan([fl.record(function, *args) for args in zip(*columns, strict=True)]).statistics().steps


def exit_code_of_a_child(function: Callable[[], None], seconds: float = 20) -> int:
    """Run it in a fork of this process: 0 if all went well, the signal's negative if it crashed; it may not hang."""

    def quietly() -> None:
        os.setsid()
        faulthandler.disable()
        code = 1
        try:
            torch.set_num_threads(1)  # torch's own pool of threads does not survive a fork
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    child = multiprocessing.get_context("fork").Process(target=quietly)
    child.start()
    child.join(seconds)
    hangs = child.is_alive()
    if hangs and child.pid is not None:
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
    assert not hangs, f"not done after {seconds} s"
    assert child.exitcode is not None
    return child.exitcode


# ---- Inputs.


def vector(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def vectors(count: int = 3, *shape: int) -> list[torch.Tensor]:
    return [vector(*(shape or (3,))) for _ in range(count)]


def sequences(*lengths: int, width: int = 3) -> list[torch.Tensor]:
    return [vector(length, width) for length in lengths or (2, 4, 1, 3)]


def linear(inputs: int = 3, outputs: int = 3) -> torch.nn.Linear:
    return torch.nn.Linear(inputs, outputs, dtype=torch.float64)
