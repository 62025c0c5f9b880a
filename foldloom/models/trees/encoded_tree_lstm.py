"""The binary Tree-LSTM over words in context: what a pretrained encoder makes of each word of a sentence is a leaf of its tree.

Tai, Socher, Manning, "Improved Semantic Representations From Tree-Structured Long Short-Term Memory Networks", ACL 2015, over
Wang, Wei, Dong, Bao, Yang, Zhou, "MiniLM: Deep Self-Attention Distillation for Task-Agnostic Compression of Pre-Trained
Transformers", NeurIPS 2020, or any other encoder of the same kind. Both are trained together. The label of a phrase is told from
the state of the tree and from the mean of its words, which is what such encoders were trained for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from foldloom.errors import ArgumentError
from foldloom.execution.engine import Planned
from foldloom.graph.recording import Recording
from foldloom.models.training import Batch, ForOneExample, last_rows, together, total_cross_entropy
from foldloom.models.trees.tree_classifier import NumberedTree
from foldloom.models.trees.tree_lstm import Merge, StateOfVector
from foldloom.tracing import cell

AT_ONCE = 8
"""How many sentences the encoder takes at once. Of equally long ones, of which few are padded, that is wide enough."""


@dataclass(frozen=True, slots=True)
class EncodedTree:
    """A numbered tree whose words are positions in the sentence, and the sentence as the encoder has it."""

    tree: NumberedTree
    pieces: Sequence[int]
    """The words in pieces, by their numbers."""
    word_of_piece: Sequence[int | None]
    """None for pieces of no word, such as the end of the sentence."""


@dataclass(frozen=True, slots=True)
class Phrases:
    """Of all phrases of a tree, the whole sentence last: what its state shows, the sum of its words and how many they are, its label."""

    shown: Any
    totals: Any
    counts: Any
    labels: Any


InContext = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""What a phrase shows and what it remembers, and the sum of its words."""


class Leaf(StateOfVector):
    def forward(self, vector: torch.Tensor) -> InContext:  # type: ignore[override]
        return *super().forward(vector), vector


class Join(Merge):
    def forward(self, left: InContext, right: InContext) -> InContext:  # type: ignore[override]
        return *super().forward(left[:2], right[:2]), left[2] + right[2]


class EncodedTreeLSTM(ForOneExample):
    """The answer for a tree is the probability of each label at its root.

    ``encoder`` is called as those of the package transformers are, and gives vectors of ``size``.

    >>> from types import SimpleNamespace
    >>> import torch
    >>> from foldloom import models
    >>> from foldloom.models.trees.encoded_tree_lstm import EncodedTree
    >>> class Encoder(torch.nn.Embedding):  # in place of a pretrained one
    ...     def forward(self, input_ids, attention_mask):
    ...         return SimpleNamespace(last_hidden_state=super().forward(input_ids))
    >>> example = EncodedTree((1, (0, 0), (2, 1)), pieces=[7, 3, 5, 8], word_of_piece=[None, 0, 1, None])
    >>> model = models.EncodedTreeLSTM(Encoder(9, 16), size=16, hidden=8).eval()
    >>> model.predict([example]).shape
    torch.Size([1, 5])
    """

    def __init__(
        self,
        encoder: nn.Module,
        size: int,
        hidden: int = 300,
        labels: int = 5,
        *,
        dropout: float = 0.3,
        recurrent_dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.leaf, self.join = cell(Leaf(size, hidden, dropout)), cell(Join(hidden, recurrent_dropout))
        self.dropout, self.classify = nn.Dropout(dropout), nn.Linear(hidden + size, labels)

    @property
    def can_record(self) -> bool:
        return False

    def record_each(self, examples: Sequence[EncodedTree]) -> list[Recording]:
        raise ArgumentError(
            "what the encoder makes of a sentence changes with every step of training, so that nothing can be recorded "
            "beforehand: give the model the examples"
        )

    def forward(self, example: EncodedTree) -> Phrases:
        return self.phrases(example, self.encode([example])[0])

    def results(self, batch: Batch) -> Phrases:
        if isinstance(batch, Planned):
            raise ArgumentError("a plan holds no sentences for the encoder: give the model the examples")
        results: Phrases = together(self.phrases, stack=True)(batch, self.encode(batch))
        return results

    def encode(self, examples: Sequence[EncodedTree]) -> list[torch.Tensor]:
        """For each sentence a vector for each word: the mean of those of its pieces."""
        vectors: dict[int, torch.Tensor] = {}
        by_length = sorted(range(len(examples)), key=lambda number: len(examples[number].pieces))
        for start in range(0, len(by_length), AT_ONCE):
            numbers = by_length[start : start + AT_ONCE]
            vectors |= zip(numbers, self._encode_padded([examples[number] for number in numbers]), strict=True)
        return [vectors[number] for number in range(len(examples))]

    def _encode_padded(self, examples: Sequence[EncodedTree]) -> list[torch.Tensor]:
        device = self.classify.weight.device
        sequences = [torch.tensor(example.pieces, device=device) for example in examples]
        padded = nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        lengths = torch.tensor([len(sequence) for sequence in sequences], device=device)
        present = torch.arange(padded.shape[1], device=device) < lengths[:, None]
        states = self.encoder(input_ids=padded, attention_mask=present.long()).last_hidden_state
        return [_words_of(row, example) for row, example in zip(states, examples, strict=True)]

    def phrases(self, example: EncodedTree, words: torch.Tensor) -> Phrases:
        states: list[InContext] = []
        counts: list[int] = []
        labels: list[int] = []

        def visit(tree: NumberedTree) -> tuple[InContext, int]:
            if len(tree) == 2:
                state, count = self.leaf(words[tree[1]]), 1
            else:
                (left, of_left), (right, of_right) = visit(tree[1]), visit(tree[2])
                state, count = self.join(left, right), of_left + of_right
            states.append(state)
            counts.append(count)
            labels.append(tree[0])
            return state, count

        visit(example.tree)
        shown, _, totals = zip(*states, strict=True)
        return Phrases(list(shown), list(totals), np.array(counts), np.array(labels))

    def scores(self, shown: torch.Tensor, totals: torch.Tensor, counts: npt.NDArray[np.int64]) -> torch.Tensor:
        means = totals / torch.from_numpy(counts).to(totals).unsqueeze(1)
        scores: torch.Tensor = self.classify(self.dropout(torch.cat((shown, means), 1)))
        return scores

    def total_loss(self, results: Phrases) -> torch.Tensor:
        counts = np.concatenate(results.counts)
        return total_cross_entropy(self.scores(results.shown.values, results.totals.values, counts), results.labels)

    def predict(self, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            phrases = self.results(batch)
            shown, totals = (last_rows(part.values, part.lengths) for part in (phrases.shown, phrases.totals))
            counts = np.array([of_tree[-1] for of_tree in phrases.counts])
            return torch.softmax(self.scores(shown, totals, counts), 1)


def _words_of(pieces: torch.Tensor, example: EncodedTree) -> torch.Tensor:
    rows, words = zip(*[(row, word) for row, word in enumerate(example.word_of_piece) if word is not None], strict=True)
    of_row = torch.tensor(words, device=pieces.device)
    sums = pieces.new_zeros(max(words) + 1, pieces.shape[1]).index_add(0, of_row, pieces[list(rows)])
    return sums / of_row.bincount().unsqueeze(1)
