"""Train a Tree-LSTM to tell the sign of arithmetic expressions, such as (3 - (8 * 2)) + 5, from their trees alone.

The model is written for one expression; `fl.batch` runs a batch of differently shaped ones. Run by ``make demo``.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

import foldloom as fl

OPERATORS = "+-*"
SIGNS = ("negative", "zero", "positive")


@dataclass(slots=True)
class Expression:
    value: int
    operator: str | None = None
    left: Expression | None = None
    right: Expression | None = None

    @property
    def sign(self) -> int:
        return 1 + (self.value > 0) - (self.value < 0)

    def __str__(self) -> str:
        return str(self.value) if self.operator is None else f"({self.left} {self.operator} {self.right})"


def random_expression(source: random.Random, leaves: int) -> Expression:
    if leaves == 1:
        return Expression(source.randint(0, 9))
    split = source.randint(1, leaves - 1)
    left, right = random_expression(source, split), random_expression(source, leaves - split)
    operator = source.choice(OPERATORS)
    value = {
        "+": left.value + right.value,
        "-": left.value - right.value,
        "*": left.value * right.value,
    }[operator]
    return Expression(value, operator, left, right)


def different_expressions(source: random.Random, count: int, most_leaves: int) -> list[Expression]:
    found: dict[str, Expression] = {}
    while len(found) < count:
        expression = random_expression(source, source.randint(3, most_leaves))
        found[str(expression)] = expression
    return list(found.values())


class Leaf(nn.Module):
    """A digit as a state (h, c)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.digit = nn.Embedding(10, 2 * hidden)

    def forward(self, digit: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h, c = self.digit(digit).chunk(2, -1)
        return torch.tanh(h), c


class Merge(nn.Module):
    """Two states and an operator as one state (a binary Tree-LSTM, Tai et al. 2015, its gates seeing the operator)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.operator = nn.Embedding(len(OPERATORS), hidden)
        self.hidden_layer = nn.Linear(3 * hidden, 4 * hidden)
        self.gates = nn.Linear(4 * hidden, 5 * hidden)

    def forward(
        self,
        operator: torch.Tensor,
        left: tuple[torch.Tensor, torch.Tensor],
        right: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        joined = torch.cat((self.operator(operator), left[0], right[0]), -1)
        i, f_left, f_right, o, candidate = self.gates(F.relu(self.hidden_layer(joined))).chunk(5, -1)
        c = i.sigmoid() * candidate.tanh() + f_left.sigmoid() * left[1] + f_right.sigmoid() * right[1]
        return o.sigmoid() * c.tanh(), c


class SignModel(nn.Module):
    """Written for one expression."""

    def __init__(self, hidden: int = 48) -> None:
        super().__init__()
        self.leaf, self.merge = fl.cell(Leaf(hidden)), fl.cell(Merge(hidden))
        self.classify = nn.Linear(hidden, len(SIGNS))

    def forward(self, expression: Expression) -> list[torch.Tensor]:
        """The state of every part of an expression, the whole expression last."""
        states: list[torch.Tensor] = []

        def visit(part: Expression) -> tuple[torch.Tensor, torch.Tensor]:
            if part.left is None or part.right is None or part.operator is None:
                state = self.leaf(part.value)
            else:
                state = self.merge(OPERATORS.index(part.operator), visit(part.left), visit(part.right))
            states.append(state[0])
            return state  # type: ignore[no-any-return]

        visit(expression)
        return states


def signs(expression: Expression) -> list[int]:
    """The sign of every part, in the order of the model's states."""
    below = [*signs(expression.left), *signs(expression.right)] if expression.left and expression.right else []
    return [*below, expression.sign]


class Task:
    """Expressions with their recordings, made once, and the signs to learn."""

    def __init__(self, model: SignModel, expressions: list[Expression]) -> None:
        self.expressions = expressions
        self.recordings = [fl.record(model, expression) for expression in self.expressions]
        self.signs = [torch.tensor(signs(expression)) for expression in self.expressions]

    def batch(self, numbers: list[int]) -> tuple[fl.Planned, torch.Tensor]:
        return fl.plan([self.recordings[n] for n in numbers]), torch.cat([self.signs[n] for n in numbers])


def accuracy(model: SignModel, task: Task) -> float:
    """How often the sign of the whole expression is right."""
    with torch.no_grad():
        planned, labels = task.batch(list(range(len(task.expressions))))
        states = fl.batch(model, stack=True).run(planned)
        whole = states.lengths.cumsum(0) - 1
        right: torch.Tensor = model.classify(states.values[whole]).argmax(-1) == labels[whole]
        return right.double().mean().item()


def train(model: SignModel, task: Task, held_out: Task, epochs: int, batch_size: int) -> float:
    batched = fl.batch(model, stack=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    steps = epochs * (len(task.expressions) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=steps)
    score = 0.0
    with tqdm(total=steps, desc="training", unit=" batches") as bar:
        for _ in range(epochs):
            order = torch.randperm(len(task.expressions)).tolist()
            for start in range(0, len(order) - batch_size + 1, batch_size):
                planned, labels = task.batch(order[start : start + batch_size])
                loss = F.cross_entropy(model.classify(batched.run(planned).values), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                bar.update()
                bar.set_postfix(loss=f"{loss.item():.3f}", held_out=f"{score:.2%}")
            score = accuracy(model, held_out)
    return score


def compare_speed(model: SignModel, expressions: list[Expression]) -> None:
    """One training step's forward and backward pass, one by one and batched."""

    def timed(run: Callable[..., fl.Ragged]) -> float:
        start = time.perf_counter()
        run(expressions).values.sum().backward()
        return time.perf_counter() - start

    one_by_one, batched = fl.one_by_one(model, stack=True), fl.batch(model, stack=True)
    timed(batched)
    rounds = [(timed(one_by_one), timed(batched)) for _ in range(3)]
    alone, together = (sorted(times)[1] for times in zip(*rounds, strict=True))
    print(
        f"one by one {len(expressions) / alone:,.0f} expressions/s, batched {len(expressions) / together:,.0f}: "
        f"{alone / together:.0f} times as fast, recording included"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expressions", type=int, default=40_000, help="how many to train on")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--leaves", type=int, default=6, help="most numbers in an expression")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    source = random.Random(options.seed)
    model = SignModel()
    print(f"recording {options.expressions:,} random expressions, once each")
    expressions = different_expressions(source, options.expressions + 2_000, options.leaves)
    source.shuffle(expressions)
    task, held_out = Task(model, expressions[2_000:]), Task(model, expressions[:2_000])
    print(f"for example {task.expressions[0]}, which is {SIGNS[task.expressions[0].sign]}")
    print(f"a batch: {task.batch(list(range(options.batch)))[0]}")
    score = train(model, task, held_out, options.epochs, options.batch)
    print(f"sign of expressions never seen: {score:.2%} right")
    compare_speed(model, held_out.expressions[: options.batch])


if __name__ == "__main__":
    main()
