"""Which operator stands in an expression of a Python program where one is hidden: by a child-sum Tree-LSTM over its syntax tree (Tai,
Socher, Manning 2015). Without data, from the standard library of the Python that runs."""

from __future__ import annotations

import random
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from foldloom.data.python_source import OPERATORS, ExpressionReader, hide_operator, python_files, show_hidden
from foldloom.data.structures import SourceExpression, SyntaxTree
from foldloom.data.vocabulary import Vocabulary
from foldloom.errors import DataError
from foldloom.execution.gc_pause import gc_paused
from foldloom.models.training import Trainable
from foldloom.models.trees.child_sum_tree_lstm import ChildSumTreeLSTM, LabelledTree, kinds_of, numbered
from foldloom.tasks.settings import Settings, setting, size
from foldloom.tasks.task import Data, Task

KINDS = Vocabulary(list(OPERATORS))


@dataclass(frozen=True, slots=True)
class HiddenOperator:
    """One of the operators of an expression, counted as `hide_operator` does."""

    expression: SourceExpression
    which: int

    @property
    def tree(self) -> SyntaxTree:
        return hide_operator(self.expression.tree, self.which)[0]

    @property
    def kind(self) -> str:
        return [node.kind for node in self.expression.tree if node.kind in OPERATORS][self.which]

    def __str__(self) -> str:
        return show_hidden(self.expression.text, self.which) or self.expression.text


@dataclass(frozen=True, kw_only=True)
class CodeSettings(Settings):
    epochs: int = 5
    batch: int = 128
    learning_rate: float = 6e-3
    expressions: int = setting(
        0, "How many of them to read, of files drawn at random; 0 for all.", at_least=0, at_most=10**9
    )
    largest: int = setting(40, "Expressions of more nodes are left out.", at_least=3, at_most=500)
    at_least: int = setting(20, "Names and constants that come less often are all the same.", at_least=1, at_most=10**9)
    embedding: int = size(64, "The size of the vectors of names and kinds.")
    hidden: int = size(128, "The size of states.")
    dropout: float = setting(0.1, "Of states.", at_least=0, below=1)


@dataclass(frozen=True, eq=False)
class CodeTask(Task[HiddenOperator]):
    name = "code"
    description = "which operator of an expression was hidden, by a child-sum Tree-LSTM"
    data_wanted = "a folder of Python programs; without it, Python's standard library is read"
    data_needed = False
    line_wanted = "a Python expression such as n % 2 == 0, whose outermost operator is the one to tell"
    quick: ClassVar[Mapping[str, Any]] = {
        "epochs": 3,
        "batch": 32,
        "learning_rate": 3e-2,
        "at_least": 2,
        "embedding": 16,
        "hidden": 16,
    }

    settings: CodeSettings
    kinds: Vocabulary
    roles: Vocabulary

    @classmethod
    def read(cls, source: Path | None, settings: CodeSettings) -> Data[HiddenOperator]:
        """The expressions of a tenth each of the files to choose by and to report on: no file has a part in two of them."""
        folder = Path(sysconfig.get_path("stdlib")) if source is None else source
        draw = random.Random(0)  # whatever the seed, the same files are reported on
        paths = python_files(folder)
        if not paths:
            raise DataError(f"expected {cls.data_wanted}", str(folder))
        draw.shuffle(paths)
        parts: dict[str, list[HiddenOperator]] = {"train": [], "dev": [], "test": []}
        count = skipped = 0
        with gc_paused():
            for number, path in enumerate(paths):
                part = ("test", "dev")[number % 10] if number % 10 < 2 else "train"
                reader = ExpressionReader(path, strict=False, limits=settings.limits)
                for expression in _expressions(reader, settings.largest):
                    operators = sum(node.kind in OPERATORS for node in expression.tree)
                    parts[part].append(HiddenOperator(expression, draw.randrange(operators)))
                    count += 1
                skipped += reader.skipped
                if count >= settings.expressions > 0:
                    break
        notes = [f"{skipped:,} of {number + 1:,} files were left out: they are no Python programs"] if skipped else []
        return Data.of(parts, notes)

    @classmethod
    def made(cls, count: int, seed: int) -> list[HiddenOperator]:
        """What stands on both sides of an operator tells which one it is."""
        draw = random.Random(seed)
        lines = [draw.choice(_TEMPLATES).format(*draw.sample(_NAMES, 2)) for _ in range(count)]
        return [HiddenOperator(expression, 0) for expression in ExpressionReader().parse("\n".join(lines))]

    @classmethod
    def fitted(cls, data: Data[HiddenOperator], settings: CodeSettings) -> Self:
        trees = [item.tree for item in data.train]
        kinds = (kind for tree in trees for kind in kinds_of(tree))
        return cls(
            settings,
            Vocabulary.of(kinds, at_least=settings.at_least, unknown=True),
            Vocabulary.of((node.role for tree in trees for node in tree), unknown=True),
        )

    def model(self) -> Trainable:
        settings = self.settings
        return ChildSumTreeLSTM(
            len(self.kinds),
            len(self.roles),
            len(KINDS),
            embedding=settings.embedding,
            hidden=settings.hidden,
            dropout=settings.dropout,
        )

    def example(self, item: HiddenOperator) -> LabelledTree:
        return LabelledTree(numbered(item.tree, self.kinds, self.roles), KINDS[item.kind])

    def parse(self, line: str) -> HiddenOperator:
        expressions = ExpressionReader().parse(line.strip())
        if len(expressions) != 1:
            raise DataError(f"expected {self.line_wanted}, not {len(expressions)} expressions with operators")
        return HiddenOperator(expressions[0], _outermost(expressions[0].tree))

    def answer(self, item: HiddenOperator, predicted: torch.Tensor) -> Any:
        """As they are written, of which some operators of one and of two values are the same."""
        probabilities: dict[str, float] = defaultdict(float)
        for kind, probability in zip(KINDS, predicted.tolist(), strict=True):
            probabilities[OPERATORS[kind]] += probability
        best = sorted(probabilities, key=lambda written: -probabilities[written])[:5]
        return {
            "expression": str(item),
            "operator": best[0],
            "probabilities": {written: probabilities[written] for written in best},
        }

    def scores(self, predicted: Sequence[torch.Tensor], items: Sequence[HiddenOperator]) -> dict[str, float]:
        right = torch.tensor([KINDS[item.kind] for item in items])
        return {"accuracy": (torch.stack(list(predicted)).argmax(1) == right).double().mean().item()}


def _expressions(reader: ExpressionReader, largest: int) -> Iterator[SourceExpression]:
    """What cannot be parsed is left out: the standard library has files to try parsers with."""
    for expressions in reader:
        for expression in expressions:
            if sum(1 for _ in expression.tree) <= largest:
                yield expression


def _outermost(tree: SyntaxTree) -> int:
    """Of those that are equally far out the first."""
    level = [tree]
    while True:
        for node in level:
            if node.kind in OPERATORS:
                return next(n for n, each in enumerate(e for e in tree if e.kind in OPERATORS) if each is node)
        level = [child for node in level for child in node.children]


_NAMES = ("items", "name", "path", "text", "values")
_TEMPLATES = (
    "len({}) > 0",
    "{} is None",
    "{} in self.{}",
    "not {}",
    "{}[-1]",
    "{} + 1",
    "{} and {}",
    "'%s' % {}",
    "{} == '{}'",
)
