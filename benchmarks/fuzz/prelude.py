"""What programs call: modules, cells, functions of autograd, types to return. Lines that a program has no use for the minimiser drops."""

from __future__ import annotations

import random

HEADER = """
import collections, contextlib, dataclasses, functools, math
import torch, torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F
"""

TYPES = """
Pair = collections.namedtuple("Pair", "left right")
@dataclasses.dataclass
class Record:
    value: object
    rest: object = None
class Stop(Exception):
    pass
"""

FUNCTIONS = """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        return v * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * 3
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, by):
        ctx.save_for_backward(v, by)
        return v * by
    @staticmethod
    def backward(ctx, grad):
        v, by = ctx.saved_tensors
        return grad * by, (grad * v).sum()
class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, most):
        ctx.save_for_backward(v)
        ctx.most = most
        return v.clamp(max=most)
    @staticmethod
    def backward(ctx, grad):
        v, = ctx.saved_tensors
        return grad * (v < ctx.most), None
"""

CELLS = """
merge = cell(lambda a, b: torch.tanh(a + b) * net.weight[0])
gates = cell(lambda v: net.linear(v).repeat(1, 2).chunk(2, 1))
"""

NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.single = nn.Linear(3, 3, dtype=torch.float32)
        self.norm = nn.LayerNorm(3)
        self.seq = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
        self.cell = nn.GRUCell(3, 3)
        self.lstm_cell = nn.LSTMCell(3, 3)
        self.lstm = nn.LSTM(3, 3)
        self.gru = nn.GRU(3, 2, bidirectional=True)
        self.table = nn.Embedding(4, 3)
        self.batch_norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.scale = nn.Parameter(torch.tensor(0.8))
        self.unused = nn.Linear(2, 2)
        self.count = 0
        self.h = None
        self.register_buffer("mean", torch.ones(3))
    def forward(self, v):
FORWARD
net = Net()
"""

FORWARDS = [
    """
return self.linear(v) * self.scale
""",
    """
self.h = v.tanh()
if v.sum() > 0.35:
    v = v * 2
return self.h + v
""",
    """
self.h = self.linear(v)
return self.norm(self.h) + self.mean
""",
    """
self.count += 1
return v * self.weight[1] if self.training else v.detach()
""",
]

MODES = [
    ["net.eval()"],
    ["net.eval()"],
    ["net.drop.p = 0.0", "net.batch_norm.eval()"],
    ["net.drop.eval()", "net.batch_norm.eval()"],
]

SETTINGS = [
    "net.linear.register_forward_hook(lambda module, args, result: result * 2)",
    "net.seq[1].register_forward_hook(lambda module, args, result: result + 1)",
    "net.linear.register_forward_pre_hook(lambda module, args: (args[0] + 1,))",
    "net.norm.register_full_backward_hook(lambda module, into, out: (into[0] * 2,))",
    "net.register_forward_hook(lambda module, args, result: result * 0.5)",
    "net.weight.requires_grad and net.weight.register_hook(lambda grad: grad * 2)",
    "net.linear.requires_grad_(False)",
    "net.table.weight.requires_grad_(False)",
    "net.table = nn.Embedding(4, 3, padding_idx=1)",
    "net.table = nn.Embedding(4, 3, sparse=True)",
    "net.linear.weight = net.weight",
    "nn.utils.parametrizations.weight_norm(net.seq[2])",
    "net.requires_grad_(False)",
    "net.norm = nn.LayerNorm(3, elementwise_affine=False)",
    "net.linear = nn.Linear(3, 3, bias=False); net.linear.bias = nn.Parameter(torch.ones(3))",
]


def indented(lines: list[str], by: int = 1) -> list[str]:
    return ["    " * by + line for line in lines]


def prelude(rng: random.Random) -> list[str]:
    """Everything above the functions of a program."""
    forward = indented(rng.choice(FORWARDS).strip("\n").split("\n"), 2)
    net = NET.replace("FORWARD", "\n".join(forward))
    lines = (HEADER + TYPES + FUNCTIONS + net + CELLS).strip("\n").split("\n")
    lines += rng.choice(MODES)
    return lines + [rng.choice(SETTINGS) for _ in range(rng.choice([0, 0, 1, 1, 2]))]
