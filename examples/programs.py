"""All programs by name: a model whose ``forward`` gives the loss of one example, and examples to run it on.

Those that decode have a ``predict`` besides, whose path through the code depends on what it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from examples import (
    beam_search,
    bilstm_tagger,
    character_tagger,
    child_sum_tree_lstm,
    neural_module_network,
    pointer_network,
    recursive_autoencoder,
    recursive_tensor_network,
    spinn,
    stack_lstm_parser,
    transition_parser,
    tree_lstm,
)


@dataclass(frozen=True)
class Program:
    model: Callable[..., nn.Module]
    made_examples: Callable[[int, int], Sequence[Any]]


PROGRAMS = {
    "Tree-LSTM": Program(tree_lstm.TreeLSTM, tree_lstm.made_examples),
    "child-sum Tree-LSTM": Program(child_sum_tree_lstm.ChildSumTreeLSTM, child_sum_tree_lstm.made_examples),
    "recursive autoencoder": Program(recursive_autoencoder.RecursiveAutoencoder, recursive_autoencoder.made_examples),
    "recursive neural tensor network": Program(
        recursive_tensor_network.RecursiveTensorNetwork, recursive_tensor_network.made_examples
    ),
    "SPINN": Program(spinn.SPINN, spinn.made_examples),
    "transition parser": Program(transition_parser.TransitionParser, transition_parser.made_examples),
    "stack-LSTM parser": Program(stack_lstm_parser.StackLSTMParser, stack_lstm_parser.made_examples),
    "BiLSTM tagger": Program(bilstm_tagger.BiLSTMTagger, bilstm_tagger.made_examples),
    "BiLSTM tagger with characters": Program(character_tagger.CharacterTagger, character_tagger.made_examples),
    "pointer network": Program(pointer_network.PointerNetwork, pointer_network.made_examples),
    "neural module network": Program(neural_module_network.ShapesNetwork, neural_module_network.made_examples),
    "beam search": Program(beam_search.Translator, beam_search.made_examples),
}
