"""Words as vectors, for models over sentences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

UNKNOWN = 0
"""The number of the word that stands for all that are not known (`Vocabulary.of(..., unknown=True)`)."""


class WordTable(nn.Embedding):
    """An embedding that in training forgets rare words now and then, so that the unknown word gets a vector too.

    A word that was seen n times is forgotten with probability ``alpha / (alpha + n)``, as in Kiperwasser and Goldberg 2016, once
    `forget_rare` has said how often that is.
    """

    def __init__(self, words: int, size: int) -> None:
        super().__init__(words, size)
        self.register_buffer("forgetting", torch.zeros(words))
        self.forgetting: torch.Tensor

    def forget_rare(self, counts: Sequence[int], alpha: float = 0.25) -> None:
        """By how often the words were seen that come first in the table; those after them are never forgotten."""
        seen = torch.tensor(counts, dtype=self.forgetting.dtype, device=self.forgetting.device)
        self.forgetting[: len(counts)] = alpha / (alpha + seen)

    def forward(self, word: torch.Tensor) -> torch.Tensor:
        if self.training:
            forgotten = torch.rand(word.shape, device=word.device) < self.forgetting[word]
            word = torch.where(forgotten, UNKNOWN, word)
        return super().forward(word)
