"""Crafted files: how they are made, and how they are used. Each is tried in a process that is watched (`benchmarks.mutations`)."""

from __future__ import annotations

import json
import random
import shutil
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.mutations.kinds import Kind


@dataclass(frozen=True)
class Attack:
    """``craft`` makes the file from a well-formed one at the first path, at the second."""

    name: str
    craft: Callable[[Path, Path], None]
    suffix: str = ".onnx"
    examples: Callable[[], list[Any]] = lambda: ["abc"]
    options: dict[str, Any] = field(default_factory=dict)
    is_answered: bool = False
    """Whether it asks for nothing that is too much, and is answered."""


class Attacks(Kind):
    """Every attack is an original, which is used as it is. Seeds are their numbers."""

    attacks: tuple[Attack, ...] = ()

    @abstractmethod
    def make_models(self, folder: Path) -> None:
        """Write the well-formed files, each named ``model`` with the suffix of some attacks."""

    @abstractmethod
    def use_crafted(self, path: Path, attack: Attack) -> None:
        """Do with a crafted file what a user would."""

    def make_originals(self, folder: Path) -> None:
        models = folder / "models"
        models.mkdir()
        self.make_models(models)
        for attack in self.attacks:
            attack.craft(models / f"model{attack.suffix}", folder / f"{attack.name}{attack.suffix}")

    def choose(self, folder: Path, seed: int) -> Path:
        attack = self.attacks[seed]
        return folder / f"{attack.name}{attack.suffix}"

    def mutate(self, original: Path, source: random.Random, target: Path) -> None:
        if original.is_dir():
            shutil.copytree(original, target)
        else:
            shutil.copy(original, target)

    def use(self, path: Path) -> None:
        (attack,) = [attack for attack in self.attacks if attack.name == path.stem]
        self.use_crafted(path, attack)

    def warm_up(self, folder: Path) -> None:
        """What well-formed files do is no deed of an attack."""
        for model in sorted((folder / "models").iterdir()):
            self.use_crafted(model, Attack("well-formed", lambda *_: None))


def with_description(path: Path, target: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """An exported file whose description was changed, or replaced by what ``change`` returns: JSON, or a text that is none."""
    import onnx

    model = onnx.load(path)
    (entry,) = [entry for entry in model.metadata_props if entry.key == "foldloom"]
    content = json.loads(entry.value)
    made = change(content)
    made = content if made is None else made
    entry.value = made if isinstance(made, str) else json.dumps(made)
    target.write_bytes(model.SerializeToString())
