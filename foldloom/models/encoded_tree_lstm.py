"""The binary Tree-LSTM over words in context: what a pretrained encoder makes of each word of a sentence is a leaf of its tree.

Tai, Socher, Manning, "Improved Semantic Representations From Tree-Structured Long Short-Term Memory Networks", ACL 2015, over
Wang, Wei, Dong, Bao, Yang, Zhou, "MiniLM: Deep Self-Attention Distillation for Task-Agnostic Compression of Pre-Trained
Transformers", NeurIPS 2020, or any other encoder of the same kind. Both are trained together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from foldloom.engine import Planned
from foldloom.errors import ArgumentError
from foldloom.lazy import batch as together
from foldloom.lazy import cell
from foldloom.models.training import Batch, ForOneExample, last_rows, total_cross_entropy
from foldloom.models.tree_classifier import NumberedTree
from foldloom.models.tree_lstm import Merge, State, StateOfVector
from foldloom.ragged import Ragged
from foldloom.recording import Recording

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


class EncodedTreeLSTM(ForOneExample):
    """The answer for a tree is the probability of each label at its root.

    ``encoder`` is called as those of the package transformers are, and gives vectors of ``size``.
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
        self.leaf, self.merge = cell(StateOfVector(size, hidden, dropout)), cell(Merge(hidden, recurrent_dropout))
        self.dropout, self.classify = nn.Dropout(dropout), nn.Linear(hidden, labels)

    @property
    def can_record(self) -> bool:
        return False

    def record(self, example: EncodedTree) -> Recording:
        raise ArgumentError(
            "what the encoder makes of a sentence changes with every step of training, so that nothing can be recorded "
            "beforehand: give the model the examples"
        )

    def forward(self, example: EncodedTree) -> tuple[list[torch.Tensor], npt.NDArray[np.int64]]:
        return self.states(example, self.encode([example])[0])

    def results(self, batch: Batch) -> tuple[Ragged, list[npt.NDArray[np.int64]]]:
        if isinstance(batch, Planned):
            raise ArgumentError("a plan holds no sentences for the encoder: give the model the examples")
        results: tuple[Ragged, list[npt.NDArray[np.int64]]] = together(self.states, stack=True)(
            batch, self.encode(batch)
        )
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

    def states(self, example: EncodedTree, words: torch.Tensor) -> tuple[list[torch.Tensor], npt.NDArray[np.int64]]:
        """What each phrase shows, the whole sentence last, and the labels."""
        shown: list[torch.Tensor] = []
        labels: list[int] = []

        def visit(tree: NumberedTree) -> State:
            if len(tree) == 2:
                state: State = self.leaf(words[tree[1]])
            else:
                state = self.merge(visit(tree[1]), visit(tree[2]))
            shown.append(state[0])
            labels.append(tree[0])
            return state

        visit(example.tree)
        return shown, np.array(labels)

    def total_loss(self, results: tuple[Ragged, list[npt.NDArray[np.int64]]]) -> torch.Tensor:
        states, labels = results
        return total_cross_entropy(self.classify(self.dropout(states.values)), labels)

    def predict(self, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            states, _ = self.results(batch)
            return torch.softmax(self.classify(self.dropout(last_rows(states.values, states.lengths))), 1)


def _words_of(pieces: torch.Tensor, example: EncodedTree) -> torch.Tensor:
    rows, words = zip(*[(row, word) for row, word in enumerate(example.word_of_piece) if word is not None], strict=True)
    of_row = torch.tensor(words, device=pieces.device)
    sums = pieces.new_zeros(max(words) + 1, pieces.shape[1]).index_add(0, of_row, pieces[list(rows)])
    return sums / of_row.bincount().unsqueeze(1)
