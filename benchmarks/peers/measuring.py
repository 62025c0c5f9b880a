"""All peers side by side: every peer has its turn in every round, while the others wait for a line on standard input."""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.catalogue import ORACLE, Peer
from benchmarks.peers.environments import ROOT, EnvironmentMissingError, python_of
from benchmarks.peers.protocol import Batch
from benchmarks.peers.tasks import Files

MEASURED, UNWRITTEN, CANNOT, FAILED, DIFFERENT = "measured", "not written", "cannot", "failed", "not the same model"

TOLERANCE = 1e-4
"""Of the first loss, relative."""
STEP_TOLERANCE = 0.02
"""Of what the first training step takes off the loss, relative: float32 cannot tell it as exactly."""
ALONE = 8
"""Examples of a batch that slow peers run."""
LEAST = 32
"""Examples of a turn: as many batches as it takes, so that small ones can be timed."""
WARM_UP = 2
"""Turns that do not count."""


class PeerFailedError(Exception):
    pass


class PeerProcess:
    """A peer at work."""

    def __init__(self, peer: Peer, threads: int) -> None:
        self.peer = peer
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        count = str(threads)
        self.process = subprocess.Popen(
            [str(python_of(peer.environment)), "-m", f"benchmarks.peers.workers.{peer.module}", peer.way, count],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def ask(self, verb: str, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = ""
        with suppress(BrokenPipeError):  # who died before being asked gives no line, and that is told
            print(json.dumps({"verb": verb, **request}), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            last_line = (self.errors.read().strip() or "it says nothing").splitlines()[-1]
            raise PeerFailedError(f"ended with exit code {self.process.wait()}: {last_line}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerFailedError(answer["error"])
        return answer

    def end(self) -> None:
        self.process.kill()
        with suppress(BrokenPipeError), self.process:  # closes its pipes and waits for it
            pass
        self.errors.close()


@dataclass
class Row:
    """What was seen of a peer on one task."""

    setup: str
    peer: str
    batch: int
    threads: int
    train: bool
    status: str
    reason: str = ""
    rate: float = 0.0
    """Examples a second, the median over rounds."""
    seconds: list[float] = field(default_factory=list)
    """Of each round, for one example."""
    processors: float = 0.0
    """How many were at work, on average."""
    losses: list[float] = field(default_factory=list)
    """Of the first two training steps."""
    load: float = 0.0
    """The load average after the last round: much more than the threads in use, and somebody else was at work."""
    commit: str = ""
    """Of Foldloom, when it was kept: files may hold rows of several."""

    @property
    def job(self) -> tuple[str, int, int, bool]:
        """What it was measured together with."""
        return self.setup, self.batch, self.threads, self.train

    @property
    def spread(self) -> float:
        """From the first quartile of the rounds to the third, relative to their median."""
        first, median, third = statistics.quantiles(self.seconds, n=4)
        return (third - first) / median


@dataclass(frozen=True)
class Verdict:
    status: str = MEASURED
    reason: str = ""
    losses: tuple[float, ...] = ()


class Field:
    """The peers at work with so many threads: started when they are first needed, kept until the end."""

    def __init__(self, threads: int, rounds: int, progress: Callable[[str], None]) -> None:
        self.threads, self.rounds, self.progress = threads, rounds, progress
        self.processes: dict[str, PeerProcess] = {}
        self.prepared: dict[str, Files] = {}

    def __enter__(self) -> Field:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self._end(name)

    def _end(self, name: str) -> None:
        self.processes.pop(name).end()
        self.prepared.pop(name, None)

    def measure(self, files: Files, batch: int, modes: Sequence[bool], peers: Sequence[Peer]) -> list[Row]:
        """A row for each peer and each of the modes, training (True) and inference (False)."""
        numbers = range(min(batch, len(files.example_sizes)))
        checked = picked(numbers, files.setup.checked, files.example_sizes)
        oracle = self._verdict(ORACLE, files, checked, None)
        if oracle.status != MEASURED:
            raise PeerFailedError(f"{ORACLE.title}, on {files.setup.title}: {oracle.reason}")
        verdicts = {peer.name: self._verdict(peer, files, checked, oracle.losses) for peer in peers}
        rows = []
        for train in modes:
            running = [peer for peer in peers if verdicts[peer.name].status == MEASURED]
            spent = self._rounds(running, files, batch, train)
            for peer in peers:
                verdict, timed = verdicts[peer.name], spent.get(peer.name)
                if isinstance(timed, PeerFailedError):
                    verdict = Verdict(FAILED, str(timed))
                row = Row(files.setup.name, peer.name, batch, self.threads, train, verdict.status, verdict.reason)
                row.losses = list(verdict.losses)
                if isinstance(timed, Timed):
                    row.seconds, row.rate = timed.seconds, 1 / statistics.median(timed.seconds)
                    row.processors, row.load = timed.processors, os.getloadavg()[0]
                rows.append(row)
        return rows

    def _verdict(self, peer: Peer, files: Files, checked: Batch, expected: Sequence[float] | None) -> Verdict:
        """Whether a peer can run a task, and is the same model."""
        task = files.setup.task
        if task in peer.cannot:
            return Verdict(CANNOT, peer.cannot[task])
        if self.threads > peer.threads:
            return Verdict(CANNOT, f"it has {peer.threads} thread")
        self.progress(f"preparing {peer.title}")
        try:
            if not self._prepare(peer, files):
                return Verdict(UNWRITTEN)
            losses = tuple(self.processes[peer.name].ask("check", task=task, batch=checked)["losses"])
        except EnvironmentMissingError as error:
            return Verdict(FAILED, str(error))
        except PeerFailedError as error:
            self._end(peer.name)
            return Verdict(FAILED, str(error))
        difference = differs(losses, losses if expected is None else expected)
        return Verdict(DIFFERENT if difference else MEASURED, difference, losses)

    def _prepare(self, peer: Peer, files: Files) -> bool:
        """Whether the task is written for this peer."""
        if peer.name not in self.processes:
            self.processes[peer.name] = PeerProcess(peer, self.threads)
        if self.prepared.get(peer.name) is not files:
            answer = self.processes[peer.name].ask(
                "prepare",
                task=files.setup.task,
                sizes=files.made.sizes,
                data=str(files.data),
                weights=str(files.weights),
                threads=self.threads,
            )
            if "unwritten" in answer:
                return False
            self.prepared[peer.name] = files
        return True

    def _rounds(
        self, peers: Sequence[Peer], files: Files, batch: int, train: bool
    ) -> dict[str, Timed | PeerFailedError]:
        last = WARM_UP + min(self.rounds, files.setup.most_rounds)
        turns = {peer.name: turns_of(peer, files, batch, last) for peer in peers}
        spent: dict[str, Timed | PeerFailedError] = {}
        waiting = list(peers)
        order = random.Random(0)
        for number in range(-1, last):
            # Whoever comes next finds the caches as the last one left them, so every round has another order.
            order.shuffle(waiting)
            self.progress(f"{files.setup.name}, batch {batch}: round {number + 1}")
            for peer in list(waiting):
                process = self.processes[peer.name]
                try:
                    if number < 0:
                        process.ask("expect", turns=turns[peer.name], train=train)
                        spent[peer.name] = Timed()
                        continue
                    answer = process.ask("turn", number=number)
                except PeerFailedError as error:
                    spent[peer.name] = error
                    waiting.remove(peer)
                    self._end(peer.name)
                    continue
                timed = spent[peer.name]
                if number >= WARM_UP and isinstance(timed, Timed):
                    timed.add(answer, sum(map(len, turns[peer.name][number])))
        return spent


class Timed:
    """The turns of a peer."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.wall = self.processor = 0.0

    def add(self, answer: dict[str, float], examples: int) -> None:
        self.seconds.append(answer["seconds"] / examples)
        self.wall += answer["seconds"]
        self.processor += answer["processor"]

    @property
    def processors(self) -> float:
        return self.processor / self.wall


def differs(losses: Sequence[float], expected: Sequence[float]) -> str:
    """In what two losses are not those of the oracle, if they are not."""
    (first, second), (right, next_right) = losses, expected
    if not abs(first - right) <= TOLERANCE * abs(right):
        return f"its first loss is {first:.6g}, that of {ORACLE.title} {right:.6g}"
    if not abs((first - second) - (right - next_right)) <= STEP_TOLERANCE * abs(right - next_right):
        return f"its second loss is {second:.6g}, that of {ORACLE.title} {next_right:.6g}"
    return ""


def turns_of(peer: Peer, files: Files, batch: int, count: int) -> list[list[list[int]]]:
    """The batches of each turn."""
    sizes = files.example_sizes
    batches = itertools.cycle([list(range(start, start + batch)) for start in range(0, len(sizes) - batch + 1, batch)])
    turns = [list(itertools.islice(batches, max(1, LEAST // batch))) for _ in range(count)]
    if peer.slow:
        return [[picked(batch, ALONE, sizes) for batch in turn[: max(1, ALONE // len(turn[0]))]] for turn in turns]
    return turns


def picked(numbers: Sequence[int], most: int, sizes: Sequence[int]) -> list[int]:
    """At most so many of some examples, spread evenly from the smallest to the largest."""
    if len(numbers) <= most:
        return list(numbers)
    by_size = sorted(numbers, key=lambda number: sizes[number])
    return [by_size[int((position + 0.5) * len(numbers) / most)] for position in range(most)]
