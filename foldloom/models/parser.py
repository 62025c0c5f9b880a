"""A greedy dependency parser: arc-hybrid transitions, scored from the BiLSTM vectors of four words.

Kiperwasser, Goldberg, "Simple and Accurate Dependency Parsing Using Bidirectional LSTM Feature Representations", TACL 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from foldloom.errors import ArgumentError
from foldloom.execution.engine import Planned
from foldloom.models.arc_hybrid import Configuration, Oracle
from foldloom.models.questions import Asking, answered
from foldloom.models.training import UNLABELLED, Batch, ForOneExample, together, total_cross_entropy
from foldloom.models.words import WordTable
from foldloom.tracing import cell


@dataclass(frozen=True, slots=True)
class NumberedSentence:
    """Words and tags by their numbers; the position of each word's head, -1 for the root's, and the number of its relation."""

    words: Sequence[int]
    tags: Sequence[int]
    heads: Sequence[int] = ()
    """None where they are to be found."""
    relations: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Parse:
    heads: list[int]
    relations: list[int]


Features = list[torch.Tensor]
"""The vectors of the words that a configuration looks at."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A question: the scores of actions."""

    features: Features


@dataclass(frozen=True, slots=True)
class Relations:
    """A question: for each of several words, the scores of relations to its head."""

    of_words: list[Features]


@dataclass(frozen=True, slots=True)
class Steps:
    """The scores of actions on the way through a sentence, those of relations where it gives a word its head, and what would
    have been right."""

    scores: Any
    actions: Any
    relation_scores: Any
    relations: Any


class WordVector(nn.Module):
    """A word and its tag."""

    def __init__(self, words: int, tags: int, embedding: int, tag_embedding: int, dropout: float) -> None:
        super().__init__()
        self.table, self.tag = WordTable(words, embedding), nn.Embedding(tags, tag_embedding)
        self.dropout = nn.Dropout(dropout)

    def forward(self, word: torch.Tensor, tag: torch.Tensor) -> torch.Tensor:
        return self.dropout(torch.cat((self.table(word), self.tag(tag)), 1))  # type: ignore[no-any-return]


class Decide(nn.Module):
    """Scores from the vectors of the words that a configuration looks at."""

    def __init__(self, vector: int, hidden: int, choices: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4 * vector, hidden), nn.Tanh(), nn.Dropout(dropout), nn.Linear(hidden, choices)
        )

    def forward(self, *words: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat(words, 1))  # type: ignore[no-any-return]


class TransitionParser(ForOneExample):
    """The answer for a sentence is its `Parse`.

    In training it follows the oracle; with ``explore`` its own decisions, right or wrong, and learns what is best from there on.
    Exploring takes longer: transitions wait for each other, where the oracle's are all known beforehand and scored at once.

    >>> from foldloom import models
    >>> from foldloom.models.parser import NumberedSentence
    >>> model = models.TransitionParser(words=9, tags=4, relations=5).eval()
    >>> [parse] = model.predict([NumberedSentence([1, 2, 3], [0, 1, 2])])
    >>> len(parse.heads), len(parse.relations)
    (3, 3)
    """

    def __init__(
        self,
        words: int,
        tags: int,
        relations: int,
        *,
        embedding: int = 100,
        tag_embedding: int = 25,
        hidden: int = 125,
        layers: int = 2,
        scorer: int = 100,
        dropout: float = 0.33,
        explore: bool = False,
    ) -> None:
        super().__init__()
        self.explore = explore
        # The root is a word of its own, with a tag of its own.
        self.root_word, self.root_tag = words, tags
        self.word = cell(WordVector(words + 1, tags + 1, embedding, tag_embedding, dropout))
        # A table of one row, and not a weight, so that what stands for a missing word is a value like those of words.
        self.nothing = cell(nn.Embedding(1, 2 * hidden))
        self.dropout = nn.Dropout(dropout)
        self.context = nn.LSTM(
            embedding + tag_embedding, hidden, layers, bidirectional=True, dropout=dropout if layers > 1 else 0.0
        )
        self.score = cell(Decide(2 * hidden, scorer, 3, dropout))
        self.relate = cell(Decide(2 * hidden, scorer, relations, dropout))

    @property
    def can_record(self) -> bool:
        return not self.explore

    @property
    def table(self) -> WordTable:
        table: WordTable = self.word.table
        return table

    def read(self, sentence: NumberedSentence) -> list[torch.Tensor]:
        """A vector for each word where it stands, one for the root, and the last one for words that are missing."""
        words, tags = (*sentence.words, self.root_word), (*sentence.tags, self.root_tag)
        states, _ = self.context(torch.stack([self.word(*both) for both in zip(words, tags, strict=True)]))
        return [*self.dropout(states), self.nothing(0)]

    @staticmethod
    def features(at: Configuration, states: list[torch.Tensor]) -> Features:
        return [states[-1 if word is None else word] for word in at.looked_at()]

    @staticmethod
    def choose(scores: torch.Tensor, legal: list[int]) -> int:
        return legal[0] if len(legal) == 1 else legal[int(scores[legal].argmax())]

    def forward(self, sentence: NumberedSentence) -> Steps:
        """The scores on the way that the oracle shows, or that the parser takes."""
        states, at, oracle = self.read(sentence), Configuration(len(sentence.words)), Oracle(sentence.heads)
        scores, actions, relation_scores, relations = [], [], [], []
        while not at.done:
            features, best = self.features(at, states), oracle.best(at)
            scores.append(self.score(*features))
            actions.append(best)
            attached = at.apply(self.choose(scores[-1], at.legal()) if self.explore else best)
            if attached is not None:
                is_right = at.heads[attached] == oracle.heads[attached]
                relation_scores.append(self.relate(*features))
                relations.append(sentence.relations[attached] if is_right else UNLABELLED)
        return Steps(scores, np.array(actions), relation_scores, np.array(relations))

    def total_loss(self, results: Steps) -> torch.Tensor:
        of_actions = total_cross_entropy(results.scores.values, results.actions)
        return of_actions + total_cross_entropy(results.relation_scores.values, results.relations)

    def asking(self, sentence: NumberedSentence) -> Asking:
        """Where its own decisions lead."""
        states, at = (yield sentence), Configuration(len(sentence.words))
        words: list[int] = []
        looked_at: list[Features] = []
        while not at.done:
            features = self.features(at, states)
            attached = at.apply(self.choose((yield Decision(features)), at.legal()))
            if attached is not None:
                words.append(attached)
                looked_at.append(features)
        scores = yield Relations(looked_at)
        best = dict(zip(words, torch.stack(list(scores)).argmax(1).tolist(), strict=True))
        return Parse([-1 if head == at.root else head for head in at.heads], [best[word] for word in range(at.root)])

    def reply(self, question: NumberedSentence | Decision | Relations) -> Any:
        """To what `asking` yields."""
        match question:
            case Decision(features):
                return self.score(*features)
            case Relations(of_words):
                return [self.relate(*features) for features in of_words]
        return self.read(question)

    def answer(self, sentence: NumberedSentence) -> Parse:
        parse: Parse = answered(self.asking(sentence), self.reply)
        return parse

    def to_export(self) -> Callable[[Any], Any]:
        return self.reply

    def predict(self, batch: Batch) -> list[Parse]:
        if isinstance(batch, Planned):
            raise ArgumentError(
                "a parser finds its way as it goes, so that its parses cannot be planned: give model.predict the sentences"
            )
        with torch.no_grad():
            parses: list[Parse] = together(self.answer)(batch)
        return parses
