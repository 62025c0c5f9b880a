"""Networks for a batch by hand: padded and masked, in lockstep until the last example is done."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from examples.gallery.early_exit import EarlyExitTransformer
from examples.gallery.halting import AdaptiveComputationTime, Signs
from examples.gallery.ode import NeuralODE, Trajectory
from examples.gallery.tree_search import LINES, SIDE, Board, Net, TreeSearch


def neural_ode(program: NeuralODE, examples: Sequence[Trajectory], until: float = 1.0) -> list[Tensor]:
    """A time and a step size for each trajectory; those that have arrived take steps of zero length."""
    y, end = torch.stack([e.start for e in examples]), torch.stack([e.end for e in examples])
    stiffness = torch.tensor([[e.stiffness] for e in examples])
    time, step = torch.zeros(len(y), 1, dtype=torch.float64), torch.full((len(y), 1), 0.1, dtype=torch.float64)
    k1 = stiffness * program.field(y)
    while (time < until).any():
        step = torch.minimum(step, until - time)
        h = step.to(y.dtype)
        k2 = stiffness * program.field(y + h * k1 / 2)
        k3 = stiffness * program.field(y + h * k2 * 3 / 4)
        candidate = y + h * (2 / 9 * k1 + 1 / 3 * k2 + 4 / 9 * k3)
        k4 = stiffness * program.field(candidate)
        with torch.no_grad():
            error = h * (-5 / 72 * k1 + 1 / 12 * k2 + 1 / 9 * k3 - 1 / 8 * k4)
            scale = program.tolerance * (1 + torch.maximum(y.abs(), candidate.abs()))
            ratio = (error / scale).square().mean(1, keepdim=True).sqrt().double()
            accepted = (ratio <= 1) & (time < until)
            time = torch.where(accepted, time + step, time)
            step = step * (0.9 * (ratio + 1e-10) ** (-1 / 3)).clamp(0.2, 5.0)
        y, k1 = torch.where(accepted, candidate, y), torch.where(accepted, k4, k1)
    return list((y - end).square().mean(1))


def halting(program: AdaptiveComputationTime, examples: Sequence[Signs]) -> list[Tensor]:
    """All examples read their next inputs together, and all think until the last has halted."""
    count, hidden = len(examples), program.cell.hidden_size
    inputs = pad_sequence([torch.stack(e.inputs) for e in examples], batch_first=True)
    parities = pad_sequence([torch.tensor(e.parities) for e in examples], batch_first=True)
    lengths = torch.tensor([len(e.inputs) for e in examples])
    state, loss = torch.zeros(count, hidden), torch.zeros(count)
    for number in range(inputs.shape[1]):
        reads = number < lengths
        runs, thought, mean = reads, state, torch.zeros_like(state)
        total, cost = torch.zeros(count), torch.zeros(count)
        for steps in range(1, program.longest + 1):
            flag = torch.full((count, 1), float(steps == 1))
            thought = program.cell(torch.cat([inputs[:, number], flag], 1), thought)
            probability = torch.sigmoid(program.halt(thought)).squeeze(1)
            halts = runs & ((total + probability >= 1 - program.epsilon) | (steps == program.longest))
            goes_on = runs & ~halts
            weight = torch.where(halts, 1 - total, torch.where(goes_on, probability, 0.0))
            mean = mean + weight.unsqueeze(1) * thought
            cost = torch.where(halts, steps + 1 - total, cost)
            total, runs = torch.where(goes_on, total + probability, total), goes_on
            if not runs.any():
                break
        state = torch.where(reads.unsqueeze(1), mean, state)
        logits = program.answer(state).squeeze(1)
        answer = F.binary_cross_entropy_with_logits(logits, parities[:, number], reduction="none")
        loss = loss + torch.where(reads, answer + program.price * cost, 0.0)
    return list(loss / lengths)


def early_exit(program: EarlyExitTransformer, examples: Sequence[list[int]]) -> list[tuple[Tensor, int]]:
    """Padded to the longest sentence; after each layer those that are sure leave the batch."""
    words = pad_sequence([torch.tensor(words) for words in examples], batch_first=True)
    lengths = torch.tensor([len(words) for words in examples])
    padding = torch.arange(words.shape[1]) >= lengths.unsqueeze(1)
    x = program.embed(words) + program.position(torch.arange(words.shape[1]))
    results: list[tuple[Tensor, int]] = [(x, 0)] * len(examples)
    left = torch.arange(len(examples))
    for number, (layer, leave) in enumerate(zip(program.layers, program.exits, strict=True)):
        x = layer(x, src_key_padding_mask=padding)
        log_probabilities = leave(x[:, 0]).log_softmax(1)
        leaves = log_probabilities.amax(1).exp() > program.sure
        if number == len(program.layers) - 1:
            leaves = torch.ones_like(leaves)
        for place in leaves.nonzero().flatten().tolist():
            results[int(left[place])] = log_probabilities[place], number
        stays = ~leaves
        left, lengths = left[stays], lengths[stays]
        if not len(left):
            break
        longest = int(lengths.max())
        x, padding = x[stays, :longest], padding[stays, :longest]
    return results


# --- tree search -------------------------------------------------------------------------------------------------


class Roots:
    """Many searches in lockstep: each goes down its tree in Python, and all leaves are given to the network together."""

    def __init__(self, net: Net, count: int) -> None:
        self.net = net
        self.priors: list[dict[Board, list[float]]] = [{} for _ in range(count)]
        self.visits: list[dict[tuple[Board, int], int]] = [{} for _ in range(count)]
        self.values: list[dict[tuple[Board, int], float]] = [{} for _ in range(count)]

    def descend(self, root: int, board: Board) -> tuple[list[tuple[Board, int]], Board, float | None]:
        """The moves down to a leaf, the leaf, and what it is worth to whoever moved last, if no network need be asked."""
        path: list[tuple[Board, int]] = []
        while True:
            if any(all(board[cell] == -1 for cell in line) for line in LINES):
                return path, board, 1.0
            moves = [cell for cell, taken in enumerate(board) if not taken]
            if not moves:
                return path, board, 0.0
            if board not in self.priors[root]:
                return path, board, None
            move = self.best(root, board, moves)
            path.append((board, move))
            board = tuple(-cell if n != move else -1 for n, cell in enumerate(board))

    def best(self, root: int, board: Board, moves: list[int]) -> int:
        priors, visits, values = self.priors[root][board], self.visits[root], self.values[root]
        explores = 1.5 * math.sqrt(sum(visits.get((board, move), 0) for move in moves) + 1)

        def upper_bound(move: int) -> float:
            edge = (board, move)
            return values.get(edge, 0.0) + explores * priors[move] / (1 + visits.get(edge, 0))

        return max(moves, key=upper_bound)

    def ask(self, boards: list[Board]) -> tuple[list[list[float]], list[float]]:
        cells = torch.tensor(boards).view(-1, SIDE, SIDE)
        planes = torch.stack([cells == 1, cells == -1], 1).to(self.net.policy.weight.dtype)
        x = torch.relu(self.net.hidden(self.net.convolutions(planes).flatten(1)))
        return self.net.policy(x).softmax(1).tolist(), torch.tanh(self.net.value(x)).squeeze(1).tolist()

    def simulate(self, boards: Sequence[Board]) -> None:
        leaves = [self.descend(root, board) for root, board in enumerate(boards)]
        asked = [root for root, (_, _, worth) in enumerate(leaves) if worth is None]
        priors, values = self.ask([leaves[root][1] for root in asked]) if asked else ([], [])
        answers = dict(zip(asked, zip(priors, values, strict=True), strict=True))
        for root, (path, leaf, worth) in enumerate(leaves):
            if worth is None:
                self.priors[root][leaf], value = answers[root]
                worth = -value
            visits, worths = self.visits[root], self.values[root]
            for edge in reversed(path):
                seen = visits.get(edge, 0)
                worths[edge] = (seen * worths.get(edge, 0.0) + worth) / (seen + 1)
                visits[edge] = seen + 1
                worth = -worth


@torch.no_grad()
def tree_search(program: TreeSearch, boards: Sequence[Board]) -> list[list[int]]:
    roots = Roots(program.net, len(boards))
    for _ in range(program.simulations):
        roots.simulate(boards)
    return [
        [roots.visits[root].get((board, move), 0) for move in range(SIDE * SIDE)] for root, board in enumerate(boards)
    ]
