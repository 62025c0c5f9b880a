"""Monte Carlo tree search with a network, as in AlphaZero: what to play next at noughts and crosses on a board of five by five.

Silver and others, "A general reinforcement learning algorithm that masters chess, shogi, and Go through self-play", Science 2018.
"""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor, nn

from examples.gallery.common import demonstrate

SIDE = 5
Board = tuple[int, ...]
LINES = [
    [row * SIDE + column + n * by for n in range(4)]
    for row in range(SIDE)
    for column in range(SIDE)
    for down, right, by in ((0, 3, 1), (3, 0, SIDE), (3, 3, SIDE + 1), (3, -3, SIDE - 1))
    if row + down < SIDE and 0 <= column + right < SIDE
]
"""Four in a row win."""


class Net(nn.Module):
    def __init__(self, channels: int = 32, hidden: int = 128) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(2, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()
        )
        self.hidden = nn.Linear(channels * SIDE * SIDE, hidden)
        self.policy, self.value = nn.Linear(hidden, SIDE * SIDE), nn.Linear(hidden, 1)

    def forward(self, board: Board) -> tuple[Tensor, Tensor]:
        cells = torch.tensor(board).view(SIDE, SIDE)
        planes = torch.stack([cells == 1, cells == -1]).to(self.policy.weight.dtype)
        x = torch.relu(self.hidden(self.convolutions(planes).flatten()))
        return self.policy(x), torch.tanh(self.value(x)).squeeze(0)


class Search:
    """The tree of one root: what was learned of each board, as the player sees it whose turn it is."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.priors: dict[Board, list[float]] = {}
        self.visits: dict[tuple[Board, int], int] = {}
        self.values: dict[tuple[Board, int], float] = {}

    def search(self, board: Board) -> float:
        """Visit a board once more, and say what it is worth to whoever moved last."""
        if any(all(board[cell] == -1 for cell in line) for line in LINES):
            return 1.0
        moves = [cell for cell, taken in enumerate(board) if not taken]
        if not moves:
            return 0.0
        if board not in self.priors:
            logits, value = self.net(board)
            self.priors[board] = logits.softmax(0).tolist()
            return -float(value)
        move = max(moves, key=lambda move: self.upper_bound(board, move, moves))
        value = self.search(tuple(-cell if n != move else -1 for n, cell in enumerate(board)))
        visits = self.visits.get((board, move), 0)
        self.values[board, move] = (visits * self.values.get((board, move), 0.0) + value) / (visits + 1)
        self.visits[board, move] = visits + 1
        return -value

    def upper_bound(self, board: Board, move: int, moves: list[int]) -> float:
        visits = sum(self.visits.get((board, other), 0) for other in moves)
        explores = self.priors[board][move] * math.sqrt(visits + 1) / (1 + self.visits.get((board, move), 0))
        return self.values.get((board, move), 0.0) + 1.5 * explores


class TreeSearch(nn.Module):
    def __init__(self, simulations: int = 16) -> None:
        super().__init__()
        self.net, self.simulations = Net(), simulations

    @torch.no_grad()
    def forward(self, board: Board) -> list[int]:
        """How often each square was tried."""
        tree = Search(self.net)
        for _ in range(self.simulations):
            tree.search(board)
        return [tree.visits.get((board, move), 0) for move in range(SIDE * SIDE)]


def made_examples(count: int, seed: int) -> list[Board]:
    source, boards = random.Random(seed), []
    for _ in range(count):
        stones = source.randint(2, 14)
        cells = [1, -1] * (stones // 2) + [0] * (SIDE * SIDE - stones // 2 * 2)
        boards.append(tuple(source.sample(cells, len(cells))))
    return boards


if __name__ == "__main__":
    demonstrate(TreeSearch().eval(), made_examples)
