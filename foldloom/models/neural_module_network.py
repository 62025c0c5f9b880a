"""Questions about pictures, each answered by a network put together for that question.

Andreas, Rohrbach, Darrell, Klein, "Neural Module Networks", CVPR 2016. The layout of a question says which modules to put together:
``measure[is there](combine[and](attend[red], re-attend[above](attend[circle])))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from foldloom.models.training import UNLABELLED, Batch, ForOneExample


@dataclass(frozen=True, slots=True)
class Layout:
    """What to do, to a word or relation or to the attentions of other layouts."""

    module: str
    word: str = ""
    parts: tuple[Layout, ...] = ()

    def __str__(self) -> str:
        return f"{self.module}[{self.word}]" + (f"({', '.join(map(str, self.parts))})" if self.parts else "")


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    picture: torch.Tensor
    """[channels, side, side]"""
    layout: Layout
    answer: int = UNLABELLED


class NeuralModuleNetwork(ForOneExample):
    """The answer for a question is the probability of each of the possible answers.

    >>> import torch
    >>> from foldloom import models
    >>> from foldloom.models.neural_module_network import Layout, Question
    >>> question = Question(torch.ones(3, 4, 4), Layout("measure", "is there", (Layout("attend", "red"),)))
    >>> model = models.NeuralModuleNetwork(channels=3, side=4, words=["red"], relations=["above"], answers=2)
    >>> model.predict([question]).shape
    torch.Size([1, 2])
    """

    def __init__(
        self,
        *,
        channels: int,
        side: int,
        words: Sequence[str],
        relations: Sequence[str],
        answers: int,
        features: int = 16,
        hidden: int = 16,
    ) -> None:
        super().__init__()
        places = side * side

        def layers(outputs: int) -> nn.Sequential:
            return nn.Sequential(nn.Linear(places, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

        self.see = nn.Sequential(nn.Conv2d(channels, features, 1), nn.ReLU())
        self.attend = nn.ParameterDict({word: torch.randn(features) * 0.3 for word in words})
        self.attend_bias = nn.Parameter(torch.zeros(()))
        self.re_attend = nn.ModuleDict({relation: layers(places).append(nn.ReLU()) for relation in relations})
        self.combine = nn.Conv1d(2, 1, 1)
        self.measure, self.classify = layers(answers), nn.Linear(features, answers)

    def attention(self, layout: Layout, seen: torch.Tensor) -> torch.Tensor:
        """How much each place of the picture is meant."""
        if layout.module == "attend":
            places: torch.Tensor = self.attend[layout.word] @ seen + self.attend_bias
            return places
        parts = [self.attention(part, seen) for part in layout.parts]
        if layout.module == "re-attend":
            moved: torch.Tensor = self.re_attend[layout.word](parts[0])
            return moved
        return torch.relu(self.combine(torch.stack(parts)).squeeze(0))

    def forward(self, question: Question) -> tuple[torch.Tensor, int]:
        """A score for each answer, and the right one."""
        seen = self.see(question.picture).flatten(1)
        attention = self.attention(question.layout.parts[0], seen)
        if question.layout.module == "measure":
            return self.measure(attention), question.answer
        return self.classify(seen @ torch.softmax(attention, dim=0)), question.answer

    def answer(self, question: Question) -> torch.Tensor:
        return torch.softmax(self(question)[0], -1)

    def total_loss(self, results: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        scores, answers = results
        return F.cross_entropy(scores, answers.to(scores.device), ignore_index=UNLABELLED, reduction="sum")

    def predict(self, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            return torch.softmax(self.results(batch)[0], 1)
