"""Questions about pictures, each answered by a network put together for that question.

Andreas, Rohrbach, Darrell, Klein, "Neural Module Networks", CVPR 2016, on scenes like those of its SHAPES data: coloured shapes on
a grid of three by three.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.common import demonstrate

SIDE = 3
PLACES = SIDE * SIDE
COLOURS = ("red", "green", "blue")
SHAPES = ("circle", "square", "triangle")
RELATED = {"above": (-1, 0), "below": (1, 0), "left of": (0, -1), "right of": (0, 1)}
ANSWERS = ("no", "yes", *COLOURS)


@dataclass(slots=True)
class Layout:
    """What to do, to a word or relation or to the attentions of other layouts."""

    module: str
    word: str = ""
    parts: tuple[Layout, ...] = ()

    def __str__(self) -> str:
        return f"{self.module}[{self.word}]" + (f"({', '.join(map(str, self.parts))})" if self.parts else "")


@dataclass(slots=True)
class Question:
    picture: Tensor
    """A channel for each colour and shape."""
    layout: Layout
    answer: int


class NeuralModuleNetwork(nn.Module):
    def __init__(self, features: int = 16, hidden: int = 16) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(len(COLOURS) + len(SHAPES), features, 1), nn.ReLU())
        self.attend = nn.ParameterDict({word: torch.randn(features) * 0.3 for word in COLOURS + SHAPES})
        self.attend_bias = nn.Parameter(torch.zeros(()))
        self.re_attend = nn.ModuleDict(
            {
                relation: nn.Sequential(nn.Linear(PLACES, hidden), nn.ReLU(), nn.Linear(hidden, PLACES), nn.ReLU())
                for relation in RELATED
            }
        )
        self.combine = nn.Conv1d(2, 1, 1)
        self.measure = nn.Sequential(nn.Linear(PLACES, hidden), nn.ReLU(), nn.Linear(hidden, len(ANSWERS)))
        self.classify = nn.Linear(features, len(ANSWERS))

    def attention(self, layout: Layout, seen: Tensor) -> Tensor:
        """How much each place of the picture is meant."""
        if layout.module == "attend":
            places: Tensor = self.attend[layout.word] @ seen + self.attend_bias
            return places
        parts = [self.attention(part, seen) for part in layout.parts]
        if layout.module == "re-attend":
            moved: Tensor = self.re_attend[layout.word](parts[0])
            return moved
        return torch.relu(self.combine(torch.stack(parts)).squeeze(0))

    def forward(self, question: Question) -> Tensor:
        seen = self.see(question.picture).flatten(1)
        attention = self.attention(question.layout.parts[0], seen)
        if question.layout.module == "measure":
            scores = self.measure(attention)
        else:
            scores = self.classify(seen @ torch.softmax(attention, dim=0))
        return F.cross_entropy(scores, torch.tensor(question.answer))


Scene = dict[tuple[int, int], tuple[str, str]]


def places_meant(layout: Layout, scene: Scene) -> set[tuple[int, int]]:
    """The places that a perfect network would attend to."""
    if layout.module == "attend":
        return {place for place, look in scene.items() if layout.word in look}
    parts = [places_meant(part, scene) for part in layout.parts]
    if layout.module == "combine":
        return parts[0] & parts[1]
    down, right = RELATED[layout.word]
    moved = {(row + down, column + right) for row, column in parts[0]}
    return {place for place in moved if max(place) < SIDE and min(place) >= 0}


def made_layout(source: random.Random, depth: int) -> Layout:
    if depth == 0 or source.random() < 0.2:
        return Layout("attend", source.choice(COLOURS + SHAPES))
    if source.random() < 0.5:
        return Layout("re-attend", source.choice(list(RELATED)), (made_layout(source, depth - 1),))
    return Layout("combine", "and", (made_layout(source, depth - 1), made_layout(source, depth - 1)))


def made_question(source: random.Random) -> Question:
    places = [(row, column) for row in range(SIDE) for column in range(SIDE)]
    scene: Scene = {
        place: (source.choice(COLOURS), source.choice(SHAPES)) for place in source.sample(places, source.randint(4, 9))
    }
    inner = made_layout(source, depth=3)
    meant = places_meant(inner, scene)
    colours = {scene[place][0] for place in meant if place in scene}
    picture = torch.zeros(len(COLOURS) + len(SHAPES), SIDE, SIDE)
    for (row, column), look in scene.items():
        for word in look:
            picture[(COLOURS + SHAPES).index(word), row, column] = 1.0
    if len(colours) == 1 and source.random() < 0.5:
        return Question(picture, Layout("classify", "colour", (inner,)), ANSWERS.index(colours.pop()))
    return Question(picture, Layout("measure", "is there", (inner,)), ANSWERS.index("yes" if meant else "no"))


def made_examples(count: int, seed: int) -> list[Question]:
    source = random.Random(seed)
    return [made_question(source) for _ in range(count)]


def main() -> None:
    demonstrate(NeuralModuleNetwork, made_examples)


if __name__ == "__main__":
    main()
