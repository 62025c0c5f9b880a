"""Feed-forward attention: a sequence of states as their mean, weighted by a softmax of learned scores.

Raffel, Ellis, "Feed-Forward Networks with Attention Can Solve Some Long-Term Memory Problems", ICLR 2016 workshop.

The softmax is taken pair by pair, each partial sum relative to the largest score in it, so that it is exact, never overflows,
and takes as many steps as the logarithm of the longest sequence, whatever the lengths of the others.
"""

from __future__ import annotations

import torch
from torch import nn

from foldloom import blocks as fb

Partial = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""The largest score, the sum of weights relative to it, and the states so weighted."""


def join(one: Partial, other: Partial) -> Partial:
    largest = torch.maximum(one[0], other[0])
    scale, other_scale = torch.exp(one[0] - largest), torch.exp(other[0] - largest)
    return largest, scale * one[1] + other_scale * other[1], scale * one[2] + other_scale * other[2]


def feed_forward_attention(size: int, hidden: int = 64) -> fb.Block:
    """From a sequence of vectors of this size to one; of none, zeros.

    >>> from foldloom import blocks as fb, models
    >>> (fb.Map(fb.Vector(4)) >> models.feed_forward_attention(4)).output_type
    TensorType([4], 'float32')
    """
    score = nn.Sequential(nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, 1))
    alone = fb.AllOf(score, fb.Identity()) >> fb.Function(lambda s, state: (s, torch.ones_like(s), state))
    return fb.Map(alone) >> fb.Reduce(join) >> fb.Function(lambda _, weight, state: state / weight.clamp(min=1))
