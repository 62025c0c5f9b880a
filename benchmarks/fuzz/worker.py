"""A process that judges one program after another, and the other end of it, which outlives it.

A program that ends the process or never comes to an end must not end a run of thousands.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Collection
from typing import IO, Any

import torch

from benchmarks.fuzz.judging import Verdict, verdict_on

SECONDS = 20.0


class Worker:
    """Judges programs in a process of its own, which is replaced when it dies or takes too long."""

    def __init__(self, without_c: bool = False, ignoring: Collection[str] = (), seconds: float = SECONDS) -> None:
        self._environment = {**os.environ, **({"FOLDLOOM_NO_C": "1"} if without_c else {})}
        self._ignoring = list(ignoring)
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def verdict_on(self, source: str, variants: Collection[str] = ()) -> Verdict:
        process = self._running()
        request = {"source": source, "variants": list(variants), "ignoring": self._ignoring}
        try:
            _pipe(process.stdin).write(json.dumps(request).encode() + b"\n")
            _pipe(process.stdin).flush()
            answer = self._answer(_pipe(process.stdout))
        except BrokenPipeError:  # it died between two programs
            answer = b""
        if answer is None:
            self.close()
            return Verdict("hung", category="hung", detail=f"no answer in {self._seconds:.0f} seconds")
        if not answer:
            code = process.wait()
            self.close()
            return Verdict("crashed", category=f"exit {code}", detail=f"the process ended with {code}")
        return Verdict(**json.loads(answer))

    def _answer(self, pipe: IO[bytes]) -> bytes | None:
        """A line; nothing at all where the process has ended; None where time is up."""
        ready, _, _ = select.select([pipe], [], [], self._seconds)
        return pipe.readline() if ready else None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            command = [sys.executable, "-m", "benchmarks.fuzz.worker"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self._environment
            )
            # Importing torch is not the first program's time.
            _pipe(self._process.stdout).readline()
        return self._process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()  # closes the pipes
            self._process = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def serve() -> None:
    """Answer requests until there are no more. What programs print must not get among the answers."""
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        verdict = verdict_on(request["source"], request["variants"], request["ignoring"])
        print(json.dumps(verdict.as_json()), file=answers, flush=True)


if __name__ == "__main__":
    serve()
