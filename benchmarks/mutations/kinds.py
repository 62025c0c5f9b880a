"""What can be mutated: for each kind of file, originals to start from, a way to change them, and what a user does with them."""

from __future__ import annotations

import importlib
import random
from abc import ABC, abstractmethod
from pathlib import Path

from benchmarks.mutations.changing import changed_bytes


class Kind(ABC):
    """A kind of file, or of folder.

    An instance lives in the process that reads. `warm_up` is called once before the first mutation, so that whatever is imported or
    compiled then is not taken for the deed of a file.
    """

    also_allowed: tuple[str, ...] = ()
    """Audit events that come of well-formed ones, too."""

    @abstractmethod
    def make_originals(self, folder: Path) -> None:
        """Write a few well-formed ones, each under a name of its own. Called once; the folder is kept for all mutations."""

    def mutate(self, original: Path, source: random.Random, target: Path) -> None:
        """Write a changed copy. By default some of its bytes are changed."""
        target.write_bytes(changed_bytes(original.read_bytes(), source))

    @abstractmethod
    def use(self, path: Path) -> None:
        """Do with a file what a user would. It may raise a `FoldloomError` that names the file, and nothing else."""

    def originals(self, folder: Path) -> list[Path]:
        return sorted(folder.iterdir())

    def choose(self, folder: Path, seed: int) -> Path:
        """The original of a seed."""
        return random.Random(seed).choice(self.originals(folder))

    def warm_up(self, folder: Path) -> None:
        for original in self.originals(folder):
            self.use(original)


KINDS = {
    "description": "benchmarks.mutations.exported:Descriptions",
    "onnx": "benchmarks.mutations.exported:OnnxFiles",
    "data": "benchmarks.mutations.readers:Files",
    "vectors": "benchmarks.mutations.readers:Vectors",
    "run": "benchmarks.mutations.runs:Runs",
    "recording": "benchmarks.mutations.recordings:Recordings",
    "forged-recording": "benchmarks.mutations.recordings:ForgedRecordings",
}
"""By the name after ``--kind``: the module and the class. Each is imported only where it is used, because it needs packages of its own."""


def kind_of(place: str) -> Kind:
    """An instance of the class at a place such as those in `KINDS`."""
    module, _, name = place.partition(":")
    kind: Kind = getattr(importlib.import_module(module), name)()
    return kind
