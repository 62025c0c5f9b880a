"""A process that makes and reads mutations one after the other, and the other end of it, which outlives it."""

from __future__ import annotations

import json
import os
import random
import resource
import select
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SECONDS = 5.0
MOST_MEMORY = 1 << 30


@dataclass(frozen=True)
class Verdict:
    """``kind`` is fine, refused (an error of ours that names the file), or a fault: traceback, unnamed, hung, crashed, memory, deed."""

    kind: str
    detail: str = ""

    @property
    def is_fault(self) -> bool:
        return self.kind not in ("fine", "refused")


class Worker:
    """Judges mutations in a process of its own, which is replaced when it dies or takes too long. ``kind`` is a place as in `kinds.KINDS`."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._folder = kind, folder
        self._process: subprocess.Popen[bytes] | None = None

    def verdict_on(self, seed: int, seconds: float = SECONDS) -> Verdict:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{seed}\n".encode())
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], seconds)
            answer = process.stdout.readline() if ready else None
        except BrokenPipeError:
            answer = b""
        if answer:
            return Verdict(**json.loads(answer))
        self.close()
        if answer is None:
            return Verdict("hung", f"no answer in {seconds:.0f} seconds")
        return Verdict("crashed", f"the process ended with {process.returncode}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            command = [sys.executable, "-m", "benchmarks.mutations.worker", self._kind, str(self._folder)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert self._process.stdout is not None
            if self._process.stdout.readline() != b"ready\n":
                raise RuntimeError(f"originals of {self._kind} cannot be made or read")
        return self._process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def serve(place: str, folder: Path) -> None:
    """Judge the seeds that come in. What is printed meanwhile must not get among the answers."""
    from benchmarks.mutations.kinds import kind_of
    from benchmarks.mutations.watching import Watch

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kind = kind_of(place)
    originals = folder / "originals"
    if not originals.exists():
        with tempfile.TemporaryDirectory(dir=folder) as made:
            kind.make_originals(Path(made))
            os.rename(made, originals)
            os.mkdir(made)
    kind.warm_up(originals)
    judge = _Judge(kind, originals, Watch(kind.also_allowed))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(judge.verdict_on(int(line), folder))), file=answers, flush=True)


class _Judge:
    def __init__(self, kind: Any, originals: Path, watch: Any) -> None:
        self._kind, self._originals, self._watch = kind, originals, watch
        _limit_memory()

    def verdict_on(self, seed: int, folder: Path) -> Verdict:
        from foldloom.errors import FoldloomError

        source = random.Random(seed)
        original = self._kind.choose(self._originals, seed)
        before = _memory()
        with tempfile.TemporaryDirectory(dir=folder) as made:
            target = Path(made) / original.name
            self._kind.mutate(original, source, target)
            self._watch.seen.clear()
            self._watch.is_on = True
            try:
                self._kind.use(target)
                verdict = Verdict("fine")
            except FoldloomError as error:
                told = "; ".join([str(error), *getattr(error, "__notes__", ())])
                # One line, whatever the file holds.
                is_named = original.name in told and "\n" not in str(error)
                verdict = Verdict("refused" if is_named else "unnamed", f"{type(error).__name__}: {told}")
            except BaseException as error:
                verdict = Verdict("traceback", f"{type(error).__name__}: {error} {_place(error)}")
            finally:
                self._watch.is_on = False
        if self._watch.seen:
            return Verdict("deed", self._watch.seen[0])
        if _memory() - before > MOST_MEMORY:
            return Verdict("memory", f"{(_memory() - before) >> 20} MB")
        return verdict


def _place(error: BaseException) -> str:
    """Where it was raised."""
    traceback = error.__traceback__
    places = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        places.append(f"{os.path.basename(code.co_filename)}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    return f"({' '.join(places[-3:])})"


def _memory() -> int:
    """The most that this process has ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _limit_memory() -> None:
    """A file that asks for everything must not take the machine with it."""
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 3 * MOST_MEMORY, resource.RLIM_INFINITY))


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
