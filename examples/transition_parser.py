"""A greedy dependency parser that learns from its own mistakes: in training, too, its own decisions lead from one state to the
next.

Kiperwasser, Goldberg, "Simple and Accurate Dependency Parsing Using Bidirectional LSTM Feature Representations", TACL 2016:
arc-hybrid transitions scored from the BiLSTM vectors of four words. What is right in a state that no gold parse leads to,
says the dynamic oracle of Goldberg, Nivre, "Training Deterministic Parsers with Non-Deterministic Oracles", TACL 2013.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.bilstm_tagger import BiLSTM
from examples.common import RELATIONS, WORDS, Sentence, demonstrate, made_sentences

SHIFT, LEFT, RIGHT = range(3)


@dataclass(slots=True)
class Parse:
    heads: list[int]
    relations: list[int]


class Configuration:
    """A stack, and a buffer that holds the words from ``front`` on and then the root."""

    def __init__(self, words: int) -> None:
        self.root = words
        self.stack: list[int] = []
        self.front = 0
        self.heads = [-1] * words

    @property
    def done(self) -> bool:
        return self.front == self.root and not self.stack

    def legal(self) -> list[int]:
        actions = [SHIFT] if self.front < self.root else []
        if self.stack:
            actions.append(LEFT)
        if len(self.stack) > 1:
            actions.append(RIGHT)
        return actions

    def apply(self, action: int) -> int | None:
        """The word that the action gives a head, if any."""
        if action == SHIFT:
            self.stack.append(self.front)
            self.front += 1
            return None
        word = self.stack.pop()
        self.heads[word] = self.front if action == LEFT else self.stack[-1]
        return word

    def looked_at(self) -> list[int | None]:
        """The three uppermost words of the stack and the first one of the buffer."""
        return [*([None] * 3 + self.stack)[-3:], self.front]


class Oracle:
    """How many arcs of the gold parse an action puts out of reach."""

    def __init__(self, sentence: Sentence) -> None:
        self.heads = [len(sentence.words) if head < 0 else head for head in sentence.heads]
        self.dependents: list[list[int]] = [[] for _ in range(len(sentence.words) + 1)]
        for word, head in enumerate(self.heads):
            self.dependents[head].append(word)

    def cost(self, at: Configuration, action: int) -> int:
        if action == SHIFT:
            too_late = sum(word in at.stack for word in self.dependents[at.front])
            return too_late + (self.heads[at.front] in at.stack[:-1])
        top = at.stack[-1]
        head = self.heads[top]
        without_dependents = sum(word >= at.front for word in self.dependents[top])
        if action == LEFT:
            return without_dependents + (head > at.front or head in at.stack[-2:-1])
        return without_dependents + (head >= at.front)

    def best(self, at: Configuration) -> int:
        return min(at.legal(), key=lambda action: self.cost(at, action))


class TransitionParser(nn.Module):
    def __init__(
        self,
        words: int = WORDS,
        embedding: int = 32,
        hidden: int = 24,
        layers: int = 1,
        scorer: int = 32,
        relations: int = len(RELATIONS),
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(words + 1, embedding)
        self.root = words
        self.context = nn.Sequential(*[BiLSTM(2 * hidden if layer else embedding, hidden) for layer in range(layers)])
        self.nothing = nn.Parameter(torch.randn(2 * hidden) * 0.1)
        self.score = nn.Sequential(nn.Linear(8 * hidden, scorer), nn.Tanh(), nn.Linear(scorer, 3))
        self.relate = nn.Sequential(nn.Linear(8 * hidden, scorer), nn.Tanh(), nn.Linear(scorer, relations))

    def read(self, words: list[int]) -> list[Tensor]:
        states: list[Tensor] = self.context([self.embed(torch.tensor(word)) for word in [*words, self.root]])
        return states

    def features(self, at: Configuration, states: list[Tensor]) -> Tensor:
        return torch.cat([self.nothing if word is None else states[word] for word in at.looked_at()])

    @staticmethod
    def choose(scores: Tensor, legal: list[int]) -> int:
        return legal[0] if len(legal) == 1 else legal[int(scores[legal].argmax())]

    def forward(self, sentence: Sentence) -> Tensor:
        states, at, oracle = self.read(sentence.words), Configuration(len(sentence.words)), Oracle(sentence)
        losses = []
        while not at.done:
            features = self.features(at, states)
            scores = self.score(features)
            losses.append(F.cross_entropy(scores, torch.tensor(oracle.best(at))))
            attached = at.apply(self.choose(scores, at.legal()))
            if attached is not None and at.heads[attached] == oracle.heads[attached]:
                losses.append(F.cross_entropy(self.relate(features), torch.tensor(sentence.relations[attached])))
        return torch.stack(losses).sum()

    def predict(self, sentence: Sentence) -> Parse:
        states, at = self.read(sentence.words), Configuration(len(sentence.words))
        relations: dict[int, Tensor] = {}
        while not at.done:
            features = self.features(at, states)
            attached = at.apply(self.choose(self.score(features), at.legal()))
            if attached is not None:
                relations[attached] = self.relate(features)
        best = torch.stack([relations[word] for word in range(at.root)]).argmax(1)
        return Parse([-1 if head == at.root else head for head in at.heads], best.tolist())


def made_examples(count: int, seed: int) -> list[Sentence]:
    return made_sentences(count, seed)


def main() -> None:
    demonstrate(TransitionParser, made_examples)


if __name__ == "__main__":
    main()
