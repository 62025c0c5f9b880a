"""Questions about pictures, each answered by a network put together for that question.

Andreas, Rohrbach, Darrell, Klein, "Neural Module Networks", CVPR 2016, on scenes like those of its SHAPES data: coloured shapes on
a grid of three by three.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.common import demonstrate
from foldloom.models.neural_module_network import Layout, NeuralModuleNetwork, Question

SIDE = 3
COLOURS = ("red", "green", "blue")
SHAPES = ("circle", "square", "triangle")
RELATED = {"above": (-1, 0), "below": (1, 0), "left of": (0, -1), "right of": (0, 1)}
ANSWERS = ("no", "yes", *COLOURS)


class ShapesNetwork(nn.Module):
    def __init__(self, features: int = 16, hidden: int = 16) -> None:
        super().__init__()
        self.answer = NeuralModuleNetwork(
            channels=len(COLOURS) + len(SHAPES),
            side=SIDE,
            words=COLOURS + SHAPES,
            relations=list(RELATED),
            answers=len(ANSWERS),
            features=features,
            hidden=hidden,
        )

    def forward(self, question: Question) -> Tensor:
        scores, answer = self.answer(question)
        return F.cross_entropy(scores, torch.tensor(answer))


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
    demonstrate(ShapesNetwork, made_examples)


if __name__ == "__main__":
    main()
