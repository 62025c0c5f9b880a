"""Threads that share one model, asyncio, and a fork after use."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

import foldloom as fl
from tests.never_wrong.checking import assert_same, exit_code_of_a_child, linear, sequences, vectors


class Parser(nn.Module):
    """Weights for all; state on the module, as published parsers keep it."""

    def __init__(self, keeps_state: bool = False) -> None:
        super().__init__()
        self.lin, self.keeps_state, self.h = linear(), keeps_state, None

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.tanh(self.lin(x))
        if self.keeps_state:
            self.h = h  # type: ignore[assignment]
        for _ in range(3):
            if h.sum() > 0:
                h = torch.tanh(self.lin(h))
            if self.keeps_state:
                h, self.h = self.h * 2, h  # type: ignore[assignment]
        return h


def eight_threads(model: nn.Module, make: Callable[[], list[torch.Tensor]] = sequences) -> None:
    batches = [make() for _ in range(8)]
    expected = [[model(x) for x in batch] for batch in batches]
    start = threading.Barrier(8)

    def work(batch: list[torch.Tensor]) -> list[Any]:
        start.wait()
        for _ in range(5):
            results = fl.batch(model)(batch)
        sum(result.sum() for result in results).backward()
        return results

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, batches))
    for actual, wanted in zip(found, expected, strict=True):
        assert_same(actual, wanted)
    total = sum(result.sum() for results in expected for result in results)
    for weight, grad in zip(model.parameters(), torch.autograd.grad(total, list(model.parameters())), strict=True):
        torch.testing.assert_close(weight.grad, grad)


def test_eight_threads_share_a_model() -> None:
    assert exit_code_of_a_child(lambda: eight_threads(Parser())) == 0


def test_eight_threads_share_a_model_of_cells() -> None:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = fl.cell(linear()), fl.cell(nn.Sequential(linear(), nn.Tanh()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            return self.second(y) if y.sum() > 0 else self.second(self.second(y))

    assert exit_code_of_a_child(lambda: eight_threads(Cells(), vectors)) == 0


def test_eight_threads_share_a_model_that_keeps_its_state() -> None:
    assert exit_code_of_a_child(lambda: eight_threads(Parser(keeps_state=True))) == 0


def test_threads_batch_programs_of_their_own() -> None:
    layers, inputs = [linear() for _ in range(4)], vectors(4)

    def run() -> None:
        def work(layer: nn.Module) -> Any:
            return fl.batch(lambda x: layer(x) if layer(x).sum() > 0 else x * 2)(inputs)

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(work, layers * 5))
        for layer, results in zip(layers * 5, found, strict=True):
            assert_same(results, [layer(x) if layer(x).sum() > 0 else x * 2 for x in inputs])

    assert exit_code_of_a_child(run) == 0


def test_grad_mode_of_a_thread_is_its_own() -> None:
    layer, inputs = linear(), vectors()

    def run() -> None:
        def without() -> bool:
            with torch.no_grad():
                return any(result.requires_grad for _ in range(20) for result in fl.batch(layer)(inputs))

        def with_gradients() -> bool:
            return all(result.requires_grad for _ in range(20) for result in fl.batch(layer)(inputs))

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.submit(without), pool.submit(with_gradients)
        assert not first.result()
        assert second.result()

    assert exit_code_of_a_child(run) == 0


def test_a_thread_started_inside_a_program() -> None:
    inputs = vectors()

    def function(x: torch.Tensor) -> Any:
        given, found = x.detach(), []
        thread = threading.Thread(target=lambda: found.append(torch.ones(3).sum().item()))
        thread.start()
        thread.join()
        return given * found[0]

    def run() -> None:
        results = fl.batch(function)(inputs)
        torch.testing.assert_close([r.detach() for r in results], [x.detach() * 3 for x in inputs])

    assert exit_code_of_a_child(run) == 0


def test_batches_in_asyncio() -> None:
    layer, inputs = linear(), vectors(4)

    async def one(number: int) -> Any:
        await asyncio.sleep(0)
        found = fl.batch(lambda x: layer(x) * number if layer(x).sum() > 0 else x)(inputs)
        await asyncio.sleep(0)
        return found

    async def all_of_them() -> Any:
        return await asyncio.gather(*(one(number) for number in range(5)))

    for number, results in enumerate(asyncio.run(all_of_them())):
        torch.testing.assert_close(results, [layer(x) * number if layer(x).sum() > 0 else x for x in inputs])


def test_asyncio_inside_a_program() -> None:
    layer, inputs = linear(), vectors(4)

    async def deeper(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0)
        return layer(x) * 2

    def function(x: torch.Tensor) -> torch.Tensor:
        return asyncio.run(deeper(x))

    torch.testing.assert_close(fl.batch(function)(inputs), [function(x) for x in inputs])


def test_fork_after_use() -> None:
    layer, inputs = linear(), vectors()

    def function(x: torch.Tensor) -> torch.Tensor:
        return layer(x) if layer(x).sum() > 0 else x * 2

    expected = fl.batch(function)(inputs)

    def run() -> None:
        found = fl.batch(function)(inputs)
        assert_same(found, expected)
        sum(result.sum() for result in found).backward()

    assert exit_code_of_a_child(run) == 0


def test_fork_inside_a_program() -> None:
    def run() -> None:
        def function(x: torch.Tensor) -> int:
            positive = bool((x * 2).sum() > 0)
            return exit_code_of_a_child(lambda: None, 5) + positive

        assert fl.batch(function)([torch.ones(3)]) == [1]

    assert exit_code_of_a_child(run) == 0


def test_values_with_attributes_are_freed_while_other_threads_batch() -> None:
    """Freeing a large tensor lets other threads run, in the middle of freeing the value that it was an attribute of."""

    inputs = vectors()

    def function(x: Any) -> torch.Tensor:
        for _ in range(5):
            y = x * 2
            y.note = [torch.empty(20_000)]
            x = y - 1 if y.sum() > 0 else y + 1
        return x

    expected = [function(x) for x in inputs]

    def run() -> None:
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            with ThreadPoolExecutor(4) as pool:
                batched = fl.batch(function)
                for found in pool.map(lambda _: batched._together([(x,) for x in inputs]), range(60)):
                    assert_same(found, expected)
        finally:
            sys.setswitchinterval(before)

    assert exit_code_of_a_child(run, 60) == 0
