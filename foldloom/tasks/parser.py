"""A shift-reduce parser whose stack is read by an LSTM that can go back (after Dyer et al. 2015)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from foldloom.tasks.task import Task

WORDS = 200
SHIFT, REDUCE = 0, 1


class Sentence(NamedTuple):
    """Words, and the actions that build their tree."""

    words: tuple[int, ...]
    actions: tuple[int, ...]


@dataclass(frozen=True)
class Stack:
    """The state of the LSTM after all that is on it. A push makes another one, a pop goes back to the one below."""

    shown: torch.Tensor
    memory: torch.Tensor
    top: torch.Tensor | None = None
    below: Stack | None = None

    def popped(self) -> tuple[torch.Tensor, Stack]:
        if self.top is None or self.below is None:
            raise IndexError("the actions reduce what has not been shifted")
        return self.top, self.below


class Parser(nn.Module):
    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.word = nn.Embedding(WORDS, size)
        self.read, self.ahead = nn.LSTMCell(size, size), nn.LSTMCell(size, size)
        self.compose = nn.Sequential(nn.Linear(2 * size, size), nn.Tanh())
        self.score = nn.Sequential(nn.Linear(2 * size, size), nn.ReLU(), nn.Linear(size, 2))
        self.size = size

    def forward(self, sentence: Sentence) -> torch.Tensor:
        """The loss of all actions, each chosen from the stack and from what is still to come."""
        words = [self.word(torch.tensor(word)) for word in sentence.words]
        to_come = self._from_the_end(words)
        stack, at = Stack(torch.zeros(self.size), torch.zeros(self.size)), 0
        losses: list[torch.Tensor] = []
        for action in sentence.actions:
            scores = self.score(torch.cat([stack.shown, to_come[at]]))
            losses.append(F.cross_entropy(scores, torch.tensor(action)))
            if action == SHIFT:
                stack, at = self._pushed(stack, words[at]), at + 1
            else:
                right, rest = stack.popped()
                left, rest = rest.popped()
                stack = self._pushed(rest, self.compose(torch.cat([left, right])))
        return torch.stack(losses).sum()

    def _pushed(self, stack: Stack, item: torch.Tensor) -> Stack:
        shown, memory = self.read(item, (stack.shown, stack.memory))
        return Stack(shown, memory, item, stack)

    def _from_the_end(self, words: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        shown = memory = torch.zeros(self.size)
        states = [shown]
        for word in reversed(words):
            shown, memory = self.ahead(word, (shown, memory))
            states.append(shown)
        return states[::-1]


class ParserTask(Task):
    name = "parser"
    description = "shift-reduce parsing with a stack LSTM"

    def model(self) -> nn.Module:
        return Parser()

    def made_examples(self, count: int, seed: int) -> list[Sentence]:
        source = random.Random(seed)

        def actions(words: int) -> tuple[int, ...]:
            if words == 1:
                return (SHIFT,)
            split = source.randint(1, words - 1)
            return (*actions(split), *actions(words - split), REDUCE)

        lengths = [source.randint(3, 14) for _ in range(count)]
        return [Sentence(tuple(source.randrange(WORDS) for _ in range(n)), actions(n)) for n in lengths]
