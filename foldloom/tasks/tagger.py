"""A tag for every word, rare words spelled out (Ling et al. 2015; the second task of Neubig, Goldberg, Dyer 2017)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from foldloom.tasks.task import Task

WORDS, LETTERS, TAGS = 200, 26, 6


class Token(NamedTuple):
    """``word`` is None for a rare one, which only its letters tell."""

    word: int | None
    letters: tuple[int, ...]
    tag: int


class Tagger(nn.Module):
    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.size = size
        self.known, self.letter = nn.Embedding(WORDS, size), nn.Embedding(LETTERS, size)
        self.spell, self.spell_back = nn.LSTMCell(size, size // 2), nn.LSTMCell(size, size // 2)
        self.read, self.read_back = nn.LSTMCell(size, size), nn.LSTMCell(size, size)
        self.score = nn.Linear(2 * size, TAGS)

    def forward(self, sentence: Sequence[Token]) -> torch.Tensor:
        words = [self._vector(token) for token in sentence]
        forth, back = _states(self.read, words), _states(self.read_back, words[::-1])[::-1]
        losses = [
            F.cross_entropy(self.score(torch.cat(both)), torch.tensor(token.tag))
            for token, *both in zip(sentence, forth, back, strict=True)
        ]
        return torch.stack(losses).sum()

    def _vector(self, token: Token) -> torch.Tensor:
        if token.word is not None:
            known: torch.Tensor = self.known(torch.tensor(token.word))
            return known
        letters = [self.letter(torch.tensor(letter)) for letter in token.letters]
        return torch.cat([_states(self.spell, letters)[-1], _states(self.spell_back, letters[::-1])[-1]])


def _states(cell: nn.LSTMCell, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    shown = memory = torch.zeros(cell.hidden_size)
    states: list[torch.Tensor] = []
    for item in inputs:
        shown, memory = cell(item, (shown, memory))
        states.append(shown)
    return states


class TaggerTask(Task):
    name = "tagger"
    description = "a tag for every word, rare words by their characters"

    def model(self) -> nn.Module:
        return Tagger()

    def made_examples(self, count: int, seed: int) -> list[list[Token]]:
        """The last letter of a word tells its tag; three words in ten are rare."""
        source = random.Random(seed)

        def token() -> Token:
            letters = tuple([source.randrange(LETTERS) for _ in range(source.randint(3, 9))])
            word = None if source.random() < 0.3 else source.randrange(WORDS)
            return Token(word, letters, letters[-1] % TAGS)

        return [[token() for _ in range(source.randint(4, 14))] for _ in range(count)]
