"""Which of two phrases is the more positive: both are read by shifting words and reducing pairs.

Bowman, Gauthier, Rastogi, Gupta, Manning, Potts, "A Fast Unified Model for Parsing and Sentence Understanding", ACL 2016:
SPINN, a Tree-LSTM on a stack, with a tracking LSTM that sees stack and buffer and learns to predict the transitions.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.common import WORDS, Phrase, demonstrate, made_phrase

SHIFT, REDUCE = 0, 1
State = tuple[Tensor, Tensor]


@dataclass(slots=True)
class Reading:
    words: list[int]
    transitions: list[int]


@dataclass(slots=True)
class Comparison:
    first: Reading
    second: Reading
    label: int
    """0 if the first is the more positive, 1 if neither is, 2 if the second is."""


class SPINN(nn.Module):
    def __init__(
        self, words: int = WORDS, hidden: int = 24, tracking: int = 12, classifier: int = 32, parsing: float = 0.3
    ) -> None:
        super().__init__()
        self.hidden = hidden
        self.parsing = parsing
        self.embed = nn.Embedding(words, 2 * hidden)
        self.track = nn.LSTMCell(3 * hidden, tracking)
        self.predict_transition = nn.Linear(tracking, 2)
        self.reduce_gates = nn.Linear(2 * hidden + tracking, 5 * hidden)
        self.classify = nn.Sequential(nn.Linear(4 * hidden, classifier), nn.ReLU(), nn.Linear(classifier, 3))

    def reduce(self, left: State, right: State, tracked: Tensor) -> State:
        i, f_left, f_right, o, u = self.reduce_gates(torch.cat([left[0], right[0], tracked])).chunk(5)
        c = i.sigmoid() * u.tanh() + f_left.sigmoid() * left[1] + f_right.sigmoid() * right[1]
        return o.sigmoid() * c.tanh(), c

    def read(self, reading: Reading) -> tuple[Tensor, Tensor]:
        """The vector of the phrase, and the loss of its transitions."""
        nothing = torch.zeros(self.hidden)
        buffer: list[State] = [self.embed(torch.tensor(word)).split(self.hidden) for word in reversed(reading.words)]
        stack: list[State] = []
        tracking: State | None = None
        losses = []
        for transition in reading.transitions:
            seen = [
                buffer[-1][0] if buffer else nothing,
                stack[-1][0] if stack else nothing,
                stack[-2][0] if len(stack) > 1 else nothing,
            ]
            tracking = self.track(torch.cat(seen), tracking)
            losses.append(F.cross_entropy(self.predict_transition(tracking[0]), torch.tensor(transition)))
            if transition == SHIFT:
                stack.append(buffer.pop())
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(self.reduce(left, right, tracking[0]))
        return stack[-1][0], torch.stack(losses).mean()

    def forward(self, comparison: Comparison) -> Tensor:
        (first, first_loss), (second, second_loss) = self.read(comparison.first), self.read(comparison.second)
        logits = self.classify(torch.cat([first, second, first - second, first * second]))
        return F.cross_entropy(logits, torch.tensor(comparison.label)) + self.parsing * (first_loss + second_loss)


def reading_of(phrase: Phrase) -> Reading:
    parts = list(phrase)
    return Reading(
        [part.word for part in parts if part.parts is None],
        [SHIFT if part.parts is None else REDUCE for part in parts],
    )


def made_examples(count: int, seed: int) -> list[Comparison]:
    source = random.Random(seed)
    comparisons = []
    for _ in range(count):
        first, second = (made_phrase(source, source.randint(2, 9)) for _ in range(2))
        label = 1 + (second.sentiment > first.sentiment) - (second.sentiment < first.sentiment)
        comparisons.append(Comparison(reading_of(first), reading_of(second), label))
    return comparisons


def main() -> None:
    demonstrate(SPINN, made_examples)


if __name__ == "__main__":
    main()
