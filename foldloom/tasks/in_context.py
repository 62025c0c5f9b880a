"""Sentiment with words read in context, by a pretrained encoder under the Tree-LSTM; needs ``pip install 'foldloom[encoder]'``."""

from __future__ import annotations

from typing import Any

import torch

from foldloom.data.structures import Tree
from foldloom.data.vocabulary import Vocabulary
from foldloom.models.training import Trainable
from foldloom.models.trees import minilm
from foldloom.models.trees.encoded_tree_lstm import EncodedTree, EncodedTreeLSTM


def model_in_context(hidden: int, labels: int, dropout: float, recurrent_dropout: float) -> EncodedTreeLSTM:
    """With an encoder that is yet to get its weights; those of pieces of words stay as they are, for most are in no training tree."""
    encoder = minilm.untrained_encoder()
    encoder.get_submodule("embeddings").requires_grad_(False)
    return EncodedTreeLSTM(encoder, minilm.SIZE, hidden, labels, dropout=dropout, recurrent_dropout=recurrent_dropout)


def begin_in_context(model: Trainable) -> None:
    assert isinstance(model, EncodedTreeLSTM)
    model.encoder.load_state_dict(minilm.pretrained_weights())


def example_in_context(tree: Tree, labels: Vocabulary) -> EncodedTree:
    words = tree.words
    # The words of a tree are numbered from the left, whatever they are.
    places = iter(range(len(words)))

    def placed(node: Tree) -> tuple[Any, ...]:
        if node.word is not None:
            return labels[node.label], next(places)
        return labels[node.label], *[placed(child) for child in node.children]

    return EncodedTree(placed(tree), *minilm.pieces_of(words))


def optimizer_in_context(
    model: Trainable, learning_rate: float, encoder_learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """The encoder knows much already and goes slowly."""
    assert isinstance(model, EncodedTreeLSTM)
    encoder = [weight for weight in model.encoder.parameters() if weight.requires_grad]
    tree = [weight for name, weight in model.named_parameters() if not name.startswith("encoder.")]
    groups: list[dict[str, Any]] = [{"params": encoder, "lr": encoder_learning_rate}, {"params": tree}]
    return torch.optim.AdamW(groups, lr=learning_rate, weight_decay=weight_decay)
