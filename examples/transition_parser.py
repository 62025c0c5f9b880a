"""A greedy dependency parser that learns from its own mistakes: in training, too, its own decisions lead from one state to the
next.

Kiperwasser, Goldberg, "Simple and Accurate Dependency Parsing Using Bidirectional LSTM Feature Representations", TACL 2016:
arc-hybrid transitions scored from the BiLSTM vectors of four words. What is right in a state that no gold parse leads to,
says a dynamic oracle.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.bilstm_tagger import BiLSTM
from examples.common import RELATIONS, WORDS, Sentence, demonstrate, made_sentences
from foldloom.models.arc_hybrid import Configuration, Oracle


@dataclass(slots=True)
class Parse:
    heads: list[int]
    relations: list[int]


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
        states, at, oracle = self.read(sentence.words), Configuration(len(sentence.words)), Oracle(sentence.heads)
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
