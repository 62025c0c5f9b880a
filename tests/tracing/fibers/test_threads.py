"""Batches in several threads, in coroutines, and after a fork."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl


class Model(nn.Module):
    """Branches on values, has a cell with a weight that notes its uses, and an attribute that is stored nowhere but in `reset`."""

    def __init__(self, drops: float = 0.0) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.merge = fl.cell(nn.Sequential(nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 128), nn.Linear(128, 4)))
        self.drop = nn.Dropout(drops)
        self.scale = 2.0

    def reset(self) -> None:
        self.scale = 2.0

    def forward(self, x: Any) -> Any:
        scale = self.scale
        if x.sum() > 1000:
            self.reset()
        for _ in range(3):
            if self.lin(x).sum() > 0:
                x = self.merge(x)
            x = torch.tanh(self.lin(x)) * scale
        return self.drop(x)


def xs_of(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, generator=generator) for _ in range(8)]


def test_eight_threads_share_a_model() -> None:
    model = Model()
    model.scale = 2.0
    expected = [torch.stack([model(x) for x in xs_of(seed)]).tolist() for seed in range(8)]
    failures: list[Any] = []

    def work(seed: int) -> None:
        try:
            for _ in range(5):
                found = fl.batch(model, stack=True)(xs_of(seed))
                torch.testing.assert_close(found, torch.tensor(expected[seed]))
                found.sum().backward()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert vars(model)["scale"] == 2.0
    assert all(type(weight) is nn.Parameter for weight in model.parameters())


def test_threads_that_draw_do_not_disturb_others() -> None:
    """Cells that compute once what is asked several times must draw nothing; what another thread draws does not count."""
    model = Model()
    fl.batch(model)(xs_of(0))  # loads parts of torch: a fork in the middle of an import hangs any program
    stop = threading.Event()
    failures: list[Any] = []

    def draw() -> None:
        while not stop.is_set():
            torch.rand(3)
            time.sleep(0)

    def work() -> None:
        same = [torch.ones(4)] * 6
        try:
            for _ in range(30):
                fl.batch(model)(same)
        except BaseException as error:
            failures.append(error)

    drawer, worker = threading.Thread(target=draw), threading.Thread(target=work)
    drawer.start()
    worker.start()
    worker.join(60)
    stop.set()
    drawer.join()
    assert failures == []


def test_state_of_an_example_in_several_threads() -> None:
    class Own(nn.Module):
        def forward(self, x: Any) -> Any:
            self.h = x * 2
            if self.h.sum() > 0:
                self.h = self.h + 1
            return self.h

    def work(seed: int) -> None:
        model = Own()
        for _ in range(10):
            found = fl.batch(model)(xs_of(seed))
            assert [h.tolist() for h in found] == [Own()(x).tolist() for x in xs_of(seed)]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_in_coroutines() -> None:
    model = Model()

    async def one(seed: int) -> list[Any]:
        await asyncio.sleep(0)
        found = fl.batch(model)(xs_of(seed))
        await asyncio.sleep(0)
        return found

    async def main() -> Any:
        here = await asyncio.gather(*[one(seed) for seed in range(4)])
        there = await asyncio.gather(*[asyncio.to_thread(fl.batch(model), xs_of(seed)) for seed in range(4)])
        return here, there

    for found in asyncio.run(main()):
        for seed, results in enumerate(found):
            torch.testing.assert_close(results, [model(x) for x in xs_of(seed)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_while_another_thread_is_in_a_batch() -> None:
    model = Model()
    fl.batch(model)(xs_of(0))  # loads parts of torch: a fork in the middle of an import hangs any program
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            fl.batch(model)(xs_of(0))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            time.sleep(0.01)
            child = os.fork()
            if child == 0:
                torch.set_num_threads(1)
                fl.batch(Model())(xs_of(1)[:2])
                os._exit(0)
            assert ended(child) == 0
    finally:
        stop.set()
        thread.join()


def ended(child: int) -> int:
    """The status of a child that must not hang."""
    for _ in range(600):
        number, status = os.waitpid(child, os.WNOHANG)
        if number:
            return status
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")
