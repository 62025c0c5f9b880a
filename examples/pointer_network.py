"""The convex hull of some points, as a sequence of pointers at them.

Vinyals, Fortunato, Jaitly, "Pointer Networks", NIPS 2015.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.common import demonstrate

END = 0


@dataclass(slots=True)
class Points:
    coordinates: list[tuple[float, float]]
    hull: list[int]
    """The points on the hull, counterclockwise from the leftmost."""


class PointerNetwork(nn.Module):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.encoder = nn.LSTM(2, hidden)
        self.decoder = nn.LSTMCell(2, hidden)
        self.start = nn.Parameter(torch.zeros(2))
        self.end = nn.Parameter(torch.randn(hidden) * 0.1)
        self.from_memory = nn.Linear(hidden, hidden, bias=False)
        self.from_state = nn.Linear(hidden, hidden, bias=False)
        self.pointer = nn.Linear(hidden, 1, bias=False)

    def encode(self, points: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """What can be pointed at, the end in row 0; and the state to decode from."""
        states, (hidden, cell) = self.encoder(points)
        memory = torch.cat([self.end.unsqueeze(0), states])
        return self.from_memory(memory), (hidden[0], cell[0])

    def scores(self, memory: Tensor, hidden: Tensor) -> Tensor:
        scores: Tensor = self.pointer(torch.tanh(memory + self.from_state(hidden))).squeeze(1)
        return scores

    def forward(self, example: Points) -> Tensor:
        points = torch.tensor(example.coordinates)
        memory, state = self.encode(points)
        inputs = torch.cat([self.start.unsqueeze(0), points[example.hull]])
        targets = [1 + point for point in example.hull] + [END]
        losses = []
        for previous, target in zip(inputs, targets, strict=True):
            state = self.decoder(previous, state)
            losses.append(F.cross_entropy(self.scores(memory, state[0]), torch.tensor(target)))
        return torch.stack(losses).sum()

    def predict(self, example: Points) -> list[int]:
        points = torch.tensor(example.coordinates)
        memory, state = self.encode(points)
        previous: Tensor = self.start
        hull: list[int] = []
        while len(hull) < len(points):
            state = self.decoder(previous, state)
            pointed_at = int(self.scores(memory, state[0]).argmax())
            if pointed_at == END:
                break
            hull.append(pointed_at - 1)
            previous = points[pointed_at - 1]
        return hull


def convex_hull(points: list[tuple[float, float]]) -> list[int]:
    """Andrew's monotone chain: the lower half from left to right, then the upper one back."""

    def turns_left(a: int, b: int, c: int) -> bool:
        (ax, ay), (bx, by), (cx, cy) = points[a], points[b], points[c]
        return (bx - ax) * (cy - ay) > (by - ay) * (cx - ax)

    def half(order: list[int]) -> list[int]:
        chain: list[int] = []
        for point in order:
            while len(chain) > 1 and not turns_left(chain[-2], chain[-1], point):
                chain.pop()
            chain.append(point)
        return chain[:-1]

    order = sorted(range(len(points)), key=points.__getitem__)
    return half(order) + half(order[::-1])


def made_examples(count: int, seed: int) -> list[Points]:
    source = random.Random(seed)
    examples = []
    for _ in range(count):
        points = [(source.random(), source.random()) for _ in range(source.randint(4, 12))]
        examples.append(Points(points, convex_hull(points)))
    return examples


def main() -> None:
    demonstrate(PointerNetwork, made_examples)


if __name__ == "__main__":
    main()
