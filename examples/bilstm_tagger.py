"""A tag for every word, from the words before and after it.

Huang, Xu, Yu, "Bidirectional LSTM-CRF Models for Sequence Tagging", 2015, its BiLSTM; with a hidden layer before the tags, as
in the first task of Neubig, Goldberg, Dyer, "On-the-fly Operation Batching in Dynamic Computation Graphs", NIPS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.common import RELATIONS, WORDS, demonstrate, made_sentences


@dataclass(slots=True)
class TaggedSentence:
    words: list[int]
    tags: list[int]


class BiLSTM(nn.Module):
    """What each vector means where it stands: one LSTM from the left, one from the right."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.rightward = nn.LSTMCell(inputs, hidden)
        self.leftward = nn.LSTMCell(inputs, hidden)

    def forward(self, vectors: list[Tensor]) -> list[Tensor]:
        from_left = self.run(self.rightward, vectors)
        from_right = self.run(self.leftward, vectors[::-1])[::-1]
        return [torch.cat(both) for both in zip(from_left, from_right, strict=True)]

    @staticmethod
    def run(lstm: nn.LSTMCell, vectors: list[Tensor]) -> list[Tensor]:
        h = c = torch.zeros(lstm.hidden_size)
        states = []
        for vector in vectors:
            h, c = lstm(vector, (h, c))
            states.append(h)
        return states


class BiLSTMTagger(nn.Module):
    def __init__(
        self, words: int = WORDS, embedding: int = 32, hidden: int = 24, scorer: int = 16, tags: int = len(RELATIONS)
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, embedding)
        self.context = BiLSTM(embedding, hidden)
        self.score = nn.Sequential(nn.Linear(2 * hidden, scorer), nn.Tanh(), nn.Linear(scorer, tags))

    def forward(self, sentence: TaggedSentence) -> Tensor:
        vectors = [self.embed(torch.tensor(word)) for word in sentence.words]
        losses = [
            F.cross_entropy(self.score(state), torch.tensor(tag))
            for state, tag in zip(self.context(vectors), sentence.tags, strict=True)
        ]
        return torch.stack(losses).sum()


def made_examples(count: int, seed: int) -> list[TaggedSentence]:
    """The tag of a word is its syntactic relation, which the words around it tell."""
    return [TaggedSentence(sentence.words, sentence.relations) for sentence in made_sentences(count, seed)]


def main() -> None:
    demonstrate(BiLSTMTagger, made_examples)


if __name__ == "__main__":
    main()
