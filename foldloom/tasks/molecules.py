"""Properties of molecules, by weave convolutions (Kearnes et al. 2016)."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch

from foldloom.data.molecules import ATOM_FEATURES, FARTHEST, PAIR_FEATURES, MoleculeReader
from foldloom.data.structures import Molecule
from foldloom.data.tables import names_in
from foldloom.errors import ArgumentError, DataError
from foldloom.models.training import Trainable
from foldloom.models.weave_network import WeaveNetwork
from foldloom.tasks.settings import Settings, setting
from foldloom.tasks.settings import size as sized
from foldloom.tasks.task import Data, Task

SOLUBILITY = "measured log solubility in mols per litre"
"""As the file of Delaney (ESOL) has it."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class MoleculesSettings(Settings):
    epochs: int = 60
    learning_rate: float = 3e-3
    weight_decay: float = setting(1e-5, "Of all weights.", at_least=0, at_most=1)
    targets: str = setting(
        SOLUBILITY,
        "The columns to learn, with commas between them, in double quotes if they hold commas: "
        "measures, or if all of them are 0 or 1, classes.",
    )
    smiles: str = setting("smiles", "The column of molecules.")
    atom_limit: int = setting(400, "Molecules of more atoms are left out, and counted.", at_least=1, at_most=4096)
    size: int = sized(64, "The size of the vectors of atoms and pairs.")
    layers: int = setting(2, "Weave layers.", at_least=1, at_most=16)
    summary: int = sized(128, "The size of the vector of a molecule, of its sum and of its mean.")
    dropout: float = setting(0.1, "Of atoms, and of the molecule.", at_least=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        _targets(self)


@dataclass(frozen=True, eq=False)
class MoleculesTask(Task[Molecule]):
    name = "molecules"
    description = "measures or classes of molecules, by weave convolutions over atoms and pairs of them"
    data_wanted = (
        "a CSV file with a header, a column 'smiles' and the columns of numbers that --set targets=NAME,... names"
    )
    line_wanted = "a molecule in SMILES notation, such as CCO"
    quick: ClassVar[Mapping[str, Any]] = {
        "epochs": 3,
        "learning_rate": 1e-2,
        "size": 16,
        "summary": 16,
    }

    settings: MoleculesSettings
    classes: bool
    mean: list[float]
    spread: list[float]

    @property
    def targets(self) -> list[str]:
        return _targets(self.settings)

    @classmethod
    def read(cls, source: Path | None, settings: MoleculesSettings) -> Data[Molecule]:
        """A tenth each, drawn at random, to choose by and to report on."""
        assert source is not None
        reader = MoleculeReader(
            source,
            targets=_targets(settings),
            column=settings.smiles,
            most_atoms=settings.atom_limit,
            strict=False,
            limits=settings.limits,
        )
        molecules = list(reader)
        notes = reader.notes("rows")
        random.Random(settings.seed).shuffle(molecules)
        tenth = len(molecules) // 10
        return Data(molecules[2 * tenth :], molecules[tenth : 2 * tenth], molecules[:tenth], notes)

    @classmethod
    def made(cls, count: int, seed: int) -> list[Molecule]:
        """Chains of random atoms; what is said of their solubility is how long they are."""
        source = np.random.default_rng(seed)
        return [_chain(source, int(source.integers(2, 7))) for _ in range(count)]

    @classmethod
    def fitted(cls, data: Data[Molecule], settings: MoleculesSettings) -> Self:
        table = _table(data.train, _targets(settings))
        if np.isnan(table).all(0).any():
            raise DataError(f"expected a number of each of {settings.targets} for some molecule at least")
        known = table[~np.isnan(table)]
        if np.isin(known, (0.0, 1.0)).all():
            return cls(settings, True, [0.0] * table.shape[1], [1.0] * table.shape[1])
        spread = np.nanstd(table, 0)
        # Where all are the same there is nothing to scale.
        return cls(settings, False, np.nanmean(table, 0).tolist(), np.where(spread > 0, spread, 1.0).tolist())

    def model(self) -> Trainable:
        settings = self.settings
        return WeaveNetwork(
            self.targets,
            classes=self.classes,
            size=settings.size,
            layers=settings.layers,
            summary=settings.summary,
            dropout=settings.dropout,
            mean=self.mean,
            spread=self.spread,
        )

    def optimizer(self, model: Trainable) -> torch.optim.Optimizer:
        settings = self.settings
        return torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)

    def example(self, item: Molecule) -> Molecule:
        return item

    def parse(self, line: str) -> Molecule:
        return MoleculeReader(most_atoms=self.settings.atom_limit).parse(line)

    def answer(self, item: Molecule, predicted: torch.Tensor) -> Any:
        return dict(zip(self.targets, predicted.tolist(), strict=True))

    def scores(self, predicted: Sequence[torch.Tensor], items: Sequence[Molecule]) -> dict[str, float]:
        """Means over the targets: of the area under the ROC curve, or of the root of the mean squared error."""
        given, right = torch.stack(list(predicted)).double().numpy(), _table(items, self.targets)
        columns = [(given[known, n], right[known, n]) for n, known in enumerate(~np.isnan(right).T) if known.any()]
        if not self.classes:
            return {"RMSE": _mean([float(np.sqrt(np.mean((one - other) ** 2))) for one, other in columns])}
        return {"ROC-AUC": _mean([area_under_roc(*column) for column in columns if len(set(column[1])) == 2])}

    def quality(self, scores: Mapping[str, float]) -> float:
        return scores["ROC-AUC"] if self.classes else -scores["RMSE"]


def area_under_roc(given: Numbers, right: Numbers) -> float:
    """How likely a positive example is ranked above a negative one; a tie counts half.

    >>> area_under_roc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1]))
    0.875
    """
    positive, negative = np.sort(given[right == 1]), given[right == 0]
    below, not_above = (np.searchsorted(positive, negative, side) for side in ("left", "right"))
    return float(1 - np.mean(below + not_above) / (2 * len(positive)))


def _mean(scores: Sequence[float]) -> float:
    """No number if there are none: of a class that all have, or that none has, there is no area."""
    return sum(scores) / len(scores) if scores else math.nan


def _targets(settings: MoleculesSettings) -> list[str]:
    try:
        names = names_in(settings.targets)
    except csv.Error as error:
        raise ArgumentError(f"expected names of columns for the setting 'targets': {error}") from error
    if not names or not all(names) or len(set(names)) < len(names):
        raise ArgumentError(
            f"expected different names of columns, with commas between them, for the setting 'targets', not {settings.targets[:60]!r}"
        )
    return names


def _table(molecules: Sequence[Molecule], targets: Sequence[str]) -> Numbers:
    return np.array([[molecule.targets.get(name, np.nan) for name in targets] for molecule in molecules])


def _chain(source: np.random.Generator, atoms: int) -> Molecule:
    places = np.arange(atoms)
    distances = np.abs(places - places[:, None])
    near = np.eye(PAIR_FEATURES, dtype=np.float32)[np.minimum(distances, FARTHEST)]
    elements = np.eye(ATOM_FEATURES, dtype=np.float32)[source.integers(0, 5, atoms)]
    return Molecule("", elements, near, distances, {SOLUBILITY: float(atoms)})
