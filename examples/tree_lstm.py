"""The sentiment of a phrase and of each of its parts, from its tree.

Tai, Socher, Manning, "Improved Semantic Representations From Tree-Structured Long Short-Term Memory Networks", ACL 2015:
the binary (N-ary) Tree-LSTM over constituency trees.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.common import SENTIMENTS, WORDS, Phrase, demonstrate, made_phrases

State = tuple[Tensor, Tensor]


class Leaf(nn.Module):
    def __init__(self, embedding: int, hidden: int) -> None:
        super().__init__()
        self.gates = nn.Linear(embedding, 3 * hidden)

    def forward(self, word: Tensor) -> State:
        i, o, u = self.gates(word).chunk(3, dim=-1)
        c = torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(c), c


class Merge(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * hidden, 5 * hidden)

    def forward(self, left: State, right: State) -> State:
        (left_h, left_c), (right_h, right_c) = left, right
        i, f_left, f_right, o, u = self.gates(torch.cat((left_h, right_h), dim=-1)).chunk(5, dim=-1)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f_left) * left_c + torch.sigmoid(f_right) * right_c
        return torch.sigmoid(o) * torch.tanh(c), c


class TreeLSTM(nn.Module):
    def __init__(self, words: int = WORDS, embedding: int = 32, hidden: int = 32, labels: int = SENTIMENTS) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, embedding)
        self.leaf = Leaf(embedding, hidden)
        self.merge = Merge(hidden)
        self.classify = nn.Linear(hidden, labels)

    def forward(self, phrase: Phrase) -> Tensor:
        """The summed loss of the sentiments of all parts."""
        losses: list[Tensor] = []

        def visit(part: Phrase) -> State:
            if part.parts is None:
                state: State = self.leaf(self.embed(torch.tensor(part.word)))
            else:
                left, right = part.parts
                state = self.merge(visit(left), visit(right))
            losses.append(F.cross_entropy(self.classify(state[0]), torch.tensor(part.sentiment)))
            return state

        visit(phrase)
        return torch.stack(losses).sum()


def made_examples(count: int, seed: int) -> list[Phrase]:
    return made_phrases(count, seed)


def main() -> None:
    demonstrate(TreeLSTM, made_examples)


if __name__ == "__main__":
    main()
