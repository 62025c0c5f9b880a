"""Published models, written in blocks."""

from foldloom.models.attention import feed_forward_attention
from foldloom.models.hierarchical_rnn import hierarchical_rnn
from foldloom.models.tree_lstm import TreeLSTM
from foldloom.models.weave import weave_convolution

__all__ = ["TreeLSTM", "feed_forward_attention", "hierarchical_rnn", "weave_convolution"]
