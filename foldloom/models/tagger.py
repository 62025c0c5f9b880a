"""A tag for every word of a sentence: a BiLSTM over words, and over the characters of each word if there are any.

Huang, Xu, Yu, "Bidirectional LSTM-CRF Models for Sequence Tagging", 2015, its BiLSTM; characters as in Ling, Luis, Marujo,
Astudillo, Amir, Dyer, Black, Trancoso, "Finding Function in Form: Compositional Character Models for Open Vocabulary Word
Representation", EMNLP 2015, here beside the vector of the word and not in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from foldloom.graph.ragged import Ragged
from foldloom.models.training import Batch, ForOneExample, total_cross_entropy
from foldloom.models.words import WordTable
from foldloom.tracing import cell

Tags = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NumberedSentence:
    """Words, the characters of each, and tags, by their numbers."""

    words: Sequence[int]
    spelled: Sequence[Sequence[int]] = ()
    tags: Sequence[int] = ()
    """None where they are to be found."""


class WordVector(nn.Module):
    """A word by its number, and by what both directions of an LSTM remember of its characters."""

    def __init__(self, words: int, embedding: int, dropout: float) -> None:
        super().__init__()
        self.table, self.dropout = WordTable(words, embedding), nn.Dropout(dropout)

    def forward(self, word: torch.Tensor, *spelled: torch.Tensor) -> torch.Tensor:
        vectors = [self.table(word), *[last.flatten(1) for last in spelled]]
        return self.dropout(torch.cat(vectors, 1))  # type: ignore[no-any-return]


class Tagger(ForOneExample):
    """The answer for a sentence is the number of a tag for each word.

    ``characters`` is how many different ones there are; with none, words are known by their numbers alone.

    >>> from foldloom import models
    >>> from foldloom.models.tagger import NumberedSentence
    >>> model = models.Tagger(9, 4).eval()
    >>> [len(tags) for tags in model.predict([NumberedSentence([1, 2, 3]), NumberedSentence([4])])]
    [3, 1]
    """

    def __init__(
        self,
        words: int,
        tags: int,
        characters: int = 0,
        *,
        embedding: int = 100,
        character_embedding: int = 32,
        spelling: int = 64,
        hidden: int = 128,
        layers: int = 1,
        dropout: float = 0.33,
    ) -> None:
        super().__init__()
        self.character = nn.Embedding(characters, character_embedding) if characters else None
        self.spell = nn.LSTM(character_embedding, spelling, bidirectional=True) if characters else None
        self.word = cell(WordVector(words, embedding, dropout))
        inputs = embedding + (2 * spelling if characters else 0)
        self.context = nn.LSTM(inputs, hidden, layers, bidirectional=True, dropout=dropout if layers > 1 else 0.0)
        self.dropout, self.score = nn.Dropout(dropout), nn.Linear(2 * hidden, tags)

    @property
    def table(self) -> WordTable:
        table: WordTable = self.word.table
        return table

    def forward(self, sentence: NumberedSentence) -> tuple[list[torch.Tensor], Tags]:
        """A state for each word, and the tags that are known."""
        spelled = [self.spelled(sentence)] if self.spell is not None else []
        vectors = [self.word(*parts) for parts in zip(sentence.words, *spelled, strict=True)]
        states, _ = self.context(torch.stack(vectors))
        return list(states), np.array(sentence.tags, np.int64)

    def spelled(self, sentence: NumberedSentence) -> list[torch.Tensor]:
        """For each word, what both directions of an LSTM remember of its characters."""
        assert self.character is not None
        assert self.spell is not None
        # One look into the table for the whole sentence; taking rows of what it gives is free.
        vectors = self.character(torch.tensor([character for word in sentence.spelled for character in word]))
        remembered, start = [], 0
        for word in sentence.spelled:
            _, (last, _) = self.spell(vectors[start : start + len(word)])
            remembered.append(last)
            start += len(word)
        return remembered

    def scores(self, states: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.score(self.dropout(states))
        return scores

    def answer(self, sentence: NumberedSentence) -> list[torch.Tensor]:
        return [self.scores(state).argmax() for state in self(sentence)[0]]

    def total_loss(self, results: tuple[Ragged, list[Tags]]) -> torch.Tensor:
        return total_cross_entropy(self.scores(results[0].values), results[1])

    def predict(self, batch: Batch) -> list[list[int]]:
        with torch.no_grad():
            states = self.results(batch)[0]
            best = self.scores(states.values).argmax(1)
        return [part.tolist() for part in best.split(states.lengths.tolist())]
