"""A module whose calls become automatic cells, and the law for programs that change something between two of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.never_wrong.checking import Program, check_program


class Block(nn.Module):
    slope = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, dtype=torch.float64)
        self.weight = nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.scale = 1.0
        self.parts = nn.ModuleList([nn.Linear(3, 3, dtype=torch.float64) for _ in range(2)])
        self.activation: Any = torch.tanh

    @property
    def doubled(self) -> float:
        return self.scale * 2

    def helper(self, x: Tensor) -> Tensor:
        return self.activation(x) * self.doubled

    def forward(self, x: Tensor, shift: float = 0.5) -> Tensor:
        y = self.layer(x) * self.weight + shift
        for part in self.parts:
            y = self.helper(part(y)) * self.slope
        return y if not self.training else y * 3


Make = Callable[[Block], Callable[[Tensor], Any]]
"""Makes a program with a block."""


def check_guards(make: Make) -> None:
    """That the program does the same as one by one."""

    def build() -> Program:
        block = Block()
        inputs = [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(4)]
        return Program(make(block), [inputs], [*block.parameters(), *inputs])

    check_program(build)
