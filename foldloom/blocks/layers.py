"""Common modules. Blocks accept any other module as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter

Initializer = Callable[[torch.Tensor], Any]
"""Fills a tensor in place, as the functions of `torch.nn.init` do."""


class FC(LazyModuleMixin, nn.Module):
    """A fully connected layer to ``num_units``. Its input size is inferred from the block before it.

    ``weight_norm=True`` learns the norm and the direction of each unit's weights separately.

    >>> from foldloom import blocks as fb
    >>> (fb.Vector(3) >> fb.FC(2)).output_type
    TensorType([2], 'float32')
    """

    cls_to_become = None

    def __init__(
        self,
        num_units: int,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = functional.relu,
        initializer: Initializer = nn.init.xavier_uniform_,
        input_keep_prob: float = 1.0,
        output_keep_prob: float = 1.0,
        normalization_fn: Callable[[torch.Tensor], torch.Tensor] | None = None,
        weight_norm: bool = False,
    ) -> None:
        super().__init__()
        self.num_units = num_units
        self.activation, self.initializer, self.normalization_fn = activation, initializer, normalization_fn
        self.input_dropout, self.output_dropout = nn.Dropout(1 - input_keep_prob), nn.Dropout(1 - output_keep_prob)
        self.weight: nn.Parameter | UninitializedParameter = UninitializedParameter()
        self.bias = nn.Parameter(torch.zeros(num_units))
        self.lengths = nn.Parameter(torch.ones(num_units)) if weight_norm else None

    def initialize_parameters(self, x: torch.Tensor) -> None:
        if isinstance(self.weight, UninitializedParameter):
            if x.ndim != 2:
                raise ValueError(f"a fully connected layer takes a vector, not a tensor of shape {list(x.shape[1:])}")
            self.weight.materialize((self.num_units, x.shape[1]))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        if isinstance(self.weight, UninitializedParameter):
            return
        self.initializer(self.weight)
        nn.init.zeros_(self.bias)
        if self.lengths is not None:
            with torch.no_grad():
                self.lengths.copy_(self.weight.norm(dim=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = self.weight
        if self.lengths is not None:
            weight = functional.normalize(weight, dim=1) * self.lengths.unsqueeze(1)
        y = functional.linear(self.input_dropout(x), weight, self.bias)
        if self.normalization_fn is not None:
            y = self.normalization_fn(y)
        if self.activation is not None:
            y = self.activation(y)
        return self.output_dropout(y)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{self.num_units}"

    def __repr__(self) -> str:
        return f"FC({self.extra_repr()})"


class Embedding(nn.Module):
    """An embedding table. With ``mod_inputs=True`` it accepts any integer: the row is its absolute value modulo the
    number of rows.

    >>> from foldloom import blocks as fb
    >>> word = fb.Scalar("int64") >> fb.Function(fb.Embedding(100, 8))
    >>> word.output_type
    TensorType([8], 'float32')
    """

    def __init__(
        self,
        num_buckets: int,
        num_units_out: int,
        initializer: Initializer = nn.init.normal_,
        trainable: bool = True,
        mod_inputs: bool = True,
    ) -> None:
        super().__init__()
        self.num_buckets, self.num_units_out = num_buckets, num_units_out
        self.initializer, self.mod_inputs = initializer, mod_inputs
        self.weight = nn.Parameter(torch.empty(num_buckets, num_units_out), requires_grad=trainable)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.initializer(self.weight)

    def forward(self, number: torch.Tensor) -> torch.Tensor:
        row = number.abs() % self.num_buckets if self.mod_inputs else number
        return functional.embedding(row, self.weight)

    def extra_repr(self) -> str:
        return f"{self.num_buckets}, {self.num_units_out}"


class FractalNet(nn.Module):
    """Fractal networks (Larsson, Maire, Shakhnarovich 2017): a block of depth d + 1 mixes one layer with two
    consecutive blocks of depth d.

    With ``drop_path=True`` paths are dropped during training, independently for each member of a batch. With
    probability ``p_local_drop_path`` each join drops its base case, its recursive case or neither; otherwise one path
    of equal depth is kept throughout.

    >>> from torch import nn
    >>> from foldloom import blocks as fb
    >>> net = fb.FractalNet(2, 1, lambda: nn.Linear(4, 4))
    >>> (fb.Vector(4) >> fb.Function(net)).output_type
    TensorType([4], 'float32')
    >>> len([layer for layer in net.modules() if isinstance(layer, nn.Linear)])
    6
    """

    def __init__(
        self,
        num_fractal_blocks: int,
        fractal_block_depth: int,
        base_layer_builder: Callable[[], nn.Module],
        mixer: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        drop_path: bool = False,
        p_local_drop_path: float = 0.5,
        p_drop_base_case: float = 0.25,
        p_drop_recursive_case: float = 0.25,
    ) -> None:
        super().__init__()
        if p_drop_base_case + p_drop_recursive_case > 1:
            raise ValueError(
                f"a join drops one case or the other or neither, so p_drop_base_case + p_drop_recursive_case is at most 1, not "
                f"{p_drop_base_case + p_drop_recursive_case}"
            )
        self.depth, self.drop_path, self.p_local_drop_path = fractal_block_depth, drop_path, p_local_drop_path
        self.mixer = mixer or _mean
        self.p_drop = (p_drop_base_case, p_drop_recursive_case)
        self.blocks = nn.ModuleList(
            [_Fractal(fractal_block_depth, base_layer_builder) for _ in range(num_fractal_blocks)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, self._join(x))
        return x

    def _join(self, x: torch.Tensor) -> Join:
        """A function that mixes the two cases of a join at a given depth, for this batch."""
        if not (self.drop_path and self.training):
            return lambda base, recursive, _: self.mixer(base, recursive)
        column = (len(x), *[1] * (x.ndim - 1))
        local = torch.rand(column, device=x.device) < self.p_local_drop_path
        kept_depth = torch.randint(0, self.depth + 1, column, device=x.device)

        def join(base: torch.Tensor, recursive: torch.Tensor, depth: int) -> torch.Tensor:
            dice = torch.rand(column, device=x.device)
            base_dropped, recursive_dropped = self.p_drop
            only_recursive = torch.where(local, dice < base_dropped, kept_depth < depth)
            only_base = torch.where(local, dice >= 1 - recursive_dropped, kept_depth >= depth)
            mixed = torch.where(only_recursive, recursive, self.mixer(base, recursive))
            return torch.where(only_base, base, mixed)

        return join


Join = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def _mean(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one + other) / 2


class _Fractal(nn.Module):
    def __init__(self, depth: int, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.depth = depth
        self.base = build()
        self.recursive = nn.ModuleList([_Fractal(depth - 1, build) for _ in range(2)] if depth > 0 else [])

    def forward(self, x: torch.Tensor, join: Join) -> torch.Tensor:
        base = self.base(x)
        if not self.recursive:
            return base  # type: ignore[no-any-return]
        first, second = self.recursive
        return join(base, second(first(x, join), join), self.depth)
