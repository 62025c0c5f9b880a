"""Published models, each on a page or two."""

from foldloom.models.adding import AttentionAdder
from foldloom.models.attention import feed_forward_attention
from foldloom.models.hierarchical import hierarchical_rnn
from foldloom.models.neural_module_network import NeuralModuleNetwork
from foldloom.models.parser import TransitionParser
from foldloom.models.tagger import Tagger
from foldloom.models.training import Trainable
from foldloom.models.trees.child_sum_tree_lstm import ChildSumTreeLSTM
from foldloom.models.trees.encoded_tree_lstm import EncodedTreeLSTM
from foldloom.models.trees.spinn import SPINN
from foldloom.models.trees.tree_lstm import TreeLSTM
from foldloom.models.trees.tree_rnn import RecursiveTensorNetwork, TreeRNN
from foldloom.models.weave import weave_convolution
from foldloom.models.weave_network import WeaveNetwork

__all__ = [
    "SPINN",
    "AttentionAdder",
    "ChildSumTreeLSTM",
    "EncodedTreeLSTM",
    "NeuralModuleNetwork",
    "RecursiveTensorNetwork",
    "Tagger",
    "Trainable",
    "TransitionParser",
    "TreeLSTM",
    "TreeRNN",
    "WeaveNetwork",
    "feed_forward_attention",
    "hierarchical_rnn",
    "weave_convolution",
]
