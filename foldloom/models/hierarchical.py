"""A text as characters in words in sentences, each level with a recurrent network of its own.

Li, Luong, Jurafsky, "A Hierarchical Neural Autoencoder for Paragraphs and Documents", ACL 2015, its encoder, with the characters of
words below it as in Ling et al., "Finding Function in Form", EMNLP 2015; GRUs in place of LSTMs.
"""

from __future__ import annotations

import torch
from torch import nn

from foldloom import blocks as fb


class Recurrent(nn.GRUCell):
    """Takes an element and a state, gives the new state as output and as state."""

    def forward(self, element: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        state = super().forward(element, state)
        return state, state


def last_state(element: int, size: int) -> fb.Block:
    """A sequence of vectors as the state in which a recurrent network leaves it."""
    return fb.RNN(Recurrent(element, size), initial_state=fb.Zeros(size)) >> fb.GetItem(1)


def hierarchical_rnn(size: int, labels: int, characters: int = 256) -> fb.Block:
    """From a list of sentences, each a string, to a score for each label.

    >>> from foldloom import blocks as fb, models
    >>> model = fb.compile(models.hierarchical_rnn(8, labels=3))
    >>> model([["it works", "well"], ["no"]]).shape
    torch.Size([2, 3])
    """
    character = fb.InputTransform(ord) >> fb.Scalar("int64") >> fb.Embedding(characters, size)
    word = fb.Map(character) >> last_state(size, size)
    sentence = fb.InputTransform(str.split) >> fb.Map(word) >> last_state(size, size)
    return fb.Map(sentence) >> last_state(size, size) >> nn.Linear(size, labels)
