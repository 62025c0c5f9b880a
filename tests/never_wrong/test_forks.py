"""A fork while other threads are in the middle of batches: the child batches too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import foldloom as fl


class Chain(nn.Module):
    """Its weight is large enough to be stood in for, its state is kept on the module, and it waits for values."""

    h: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(160, 160)

    def forward(self, x: torch.Tensor) -> Any:
        self.h = torch.tanh(self.lin(x))
        for _ in range(2):
            if self.h.sum() > -1000:
                self.h = torch.tanh(self.lin(self.h))
        return self.h


def forks_while_threads_batch(count: int) -> None:
    torch.set_num_threads(1)
    model, inputs = Chain(), [torch.randn(160) for _ in range(6)]
    expected = [model(x) for x in inputs]
    sum(
        result.sum() for result in fl.batch(model)(inputs)
    ).backward()  # Python's own lock of imports is held in first calls
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            sum(result.sum() for result in fl.batch(model)(inputs)).backward()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    tried = 0
    for number in range(count):
        time.sleep(0.003 * (number % 7))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # a deadlock ends here
            sum(model(x).sum() for x in inputs).backward()
            os.write(writer, b"torch works")
            results = fl.batch(model)(inputs)
            torch.testing.assert_close(results, expected)
            sum(result.sum() for result in results).backward()
            os._exit(0)
        os.close(writer)
        status = os.waitpid(child, 0)[1]
        if os.read(reader, 100):  # else a thread held one of torch's own locks, and torch itself hangs
            tried += 1
            assert status == 0, f"the child of fork {number} failed or never ended"
        os.close(reader)
    assert tried > count / 2
    is_over.set()
    for thread in threads:
        thread.join()


def test_forks_while_threads_batch() -> None:
    """In a process of its own, in which no other test has left a thread that holds a lock."""
    code = "from tests.never_wrong.test_forks import forks_while_threads_batch as run; run(25)"
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
