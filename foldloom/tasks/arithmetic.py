"""The sign of an arithmetic expression, by a Tree-LSTM (Tai et al. 2015) or SPINN (Bowman et al. 2016), which also introduced it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from foldloom.data.arithmetic import ArithmeticReader, made_expressions
from foldloom.data.structures import Expression
from foldloom.data.vocabulary import Vocabulary
from foldloom.models.training import Trainable
from foldloom.models.trees.spinn import SPINN
from foldloom.models.trees.tree_classifier import numbered_expression, tokens_of
from foldloom.models.trees.tree_lstm import TreeLSTM
from foldloom.tasks.settings import Settings, setting, size
from foldloom.tasks.task import Data, Task

SIGNS = ("negative", "zero", "positive")


@dataclass(frozen=True, kw_only=True)
class ArithmeticSettings(Settings):
    epochs: int = 8
    batch: int = 64
    learning_rate: float = 6e-3
    model: str = setting("tree-lstm", "Which one.", choices=("tree-lstm", "spinn"))
    hidden: int = size(64, "The size of states.")
    made: int = setting(
        20_000,
        "Expressions that are made up to learn from, beside those that are given.",
        at_least=0,
        at_most=1_000_000,
    )


@dataclass(frozen=True, eq=False)
class ArithmeticTask(Task[Expression]):
    name = "arithmetic"
    description = "whether an expression is negative, zero or positive, by a Tree-LSTM or SPINN"
    data_wanted = (
        "a file with a line for each expression, such as ( - ( 1 10 ) ), or its sign, a tab and the expression"
    )
    data_needed = False
    line_wanted = "an expression such as ( - ( 1 10 ) )"
    quick: ClassVar[Mapping[str, Any]] = {"epochs": 5, "learning_rate": 3e-2, "hidden": 16}

    settings: ArithmeticSettings
    tokens: Vocabulary

    @classmethod
    def read(cls, source: Path | None, settings: ArithmeticSettings) -> Data[Expression]:
        """A tenth each of the different expressions, drawn at random, to choose by and to report on."""
        reader = ArithmeticReader(() if source is None else source, limits=settings.limits)
        given = {str(expression): expression for expression in reader}
        made = made_expressions(settings.made, settings.seed, most=4) if settings.made else []
        others = [expression for expression in made if str(expression) not in given]
        expressions = [given[text] for text in sorted(given)] if given else others
        random.Random(settings.seed).shuffle(expressions)
        tenth = len(expressions) // 10
        train = expressions[2 * tenth :] + (others if given else [])
        notes = [f"{len(others):,} expressions were made up to learn from (none with --set made=0)"] if others else []
        return Data(train, expressions[tenth : 2 * tenth], expressions[:tenth], notes)

    @classmethod
    def made(cls, count: int, seed: int) -> list[Expression]:
        return made_expressions(count, seed)

    @classmethod
    def fitted(cls, data: Data[Expression], settings: ArithmeticSettings) -> Self:
        tokens = (token for expression in data.train for token in tokens_of(expression))
        return cls(settings, Vocabulary.of(tokens, unknown=True))

    def model(self) -> Trainable:
        settings = self.settings
        if settings.model == "spinn":
            return SPINN(len(self.tokens), len(SIGNS), hidden=settings.hidden)
        # There are two dozen tokens, and Adam takes no sparse gradients.
        return TreeLSTM(len(self.tokens), settings.hidden, settings.hidden, len(SIGNS), sparse=False)

    def example(self, item: Expression) -> Any:
        return numbered_expression(item, self.tokens)

    def parse(self, line: str) -> Expression:
        return ArithmeticReader().parse(line)

    def answer(self, item: Expression, predicted: torch.Tensor) -> Any:
        return {
            "sign": SIGNS[int(predicted.argmax())],
            "probabilities": dict(zip(SIGNS, predicted.tolist(), strict=True)),
        }

    def scores(self, predicted: Sequence[torch.Tensor], items: Sequence[Expression]) -> dict[str, float]:
        right = torch.tensor([item.sign + 1 for item in items])
        return {"accuracy": (torch.stack(list(predicted)).argmax(1) == right).double().mean().item()}
