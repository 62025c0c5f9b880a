"""Weight gradients once.

A weight that many steps use receives, from each of them, one product of (gradient, input). Taking these products step by step
writes and adds the whole weight matrix every time, which for a chain of narrow steps costs more than the steps
themselves. Here each narrow use only notes its two factors, and the products are taken over many rows at a time.

While a plan runs, the weight matrices of its repeated cells are replaced by `LateWeight`, a tensor that computes like the
weight but notes its uses. Autograd sees

    weight ──> tap ──> use, use, use, ...

where each use sends nothing back along the edge to the tap, and the tap, which the engine runs once all uses have run,
answers for all of them. Functions that it does not know see the weight itself, so what is not faster here is merely
ordinary. A backward pass that is itself recorded takes the ordinary products too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from foldloom.execution.backward.ledgers import Ledger, ProductLedger, RowsLedger, SparseRowsLedger, sparse_rows
from foldloom.pytrees import map_leaves
from foldloom.torch_private import are_transforms_active, is_any_autocast_enabled, make_subclass

LARGE_WEIGHT = 1 << 14
"""Noting a use costs a few dozen microseconds: for a weight of fewer numbers than this, its product is taken in less."""

NARROW_STEP = 64
"""From this many rows on, a step's own product is as fast per row as a collected one, and needs no note."""

swapping = threading.RLock()
"""Held while anything stands in for weights, and by whoever must see modules as they are."""

_standing: list[tuple[torch.nn.Module, str, torch.nn.Parameter]] = []
"""The weights that something stands in for now."""


def _after_fork() -> None:
    """The thread that was to put weights back may not go on in the child."""
    if swapping._is_owned():  # type: ignore[attr-defined]
        return
    swapping._at_fork_reinit()  # type: ignore[attr-defined]
    while _standing:
        owner, name, weight = _standing.pop()
        owner._parameters[name] = weight


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def weight_grads_once(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Within this context, the weight matrices of the modules note their uses."""
    if not modules or not torch.is_grad_enabled() or is_any_autocast_enabled():
        yield
        return
    # Modules are shared by all threads, and a second run must not take the first one's stand-ins for weights.
    with swapping:
        first = len(_standing)
        stand_in: dict[int, LateWeight] = {}
        try:
            for owner in {id(child): child for module in modules for child in module.modules()}.values():
                if isinstance(owner, torch.nn.RNNBase):
                    continue  # keeps a list of its weights, in which a stand-in would remain
                for name, weight in list(owner._parameters.items()):
                    if (
                        type(weight) is torch.nn.Parameter
                        and weight.requires_grad
                        and weight.ndim == 2
                        and weight.numel() >= LARGE_WEIGHT
                    ):
                        _standing.append((owner, name, weight))
                        late = stand_in.setdefault(id(weight), LateWeight(weight))
                        owner._parameters[name] = late  # type: ignore[assignment]
            yield
        finally:
            while len(_standing) > first:
                owner, name, weight = _standing.pop()
                owner._parameters[name] = weight


class LateWeight(torch.Tensor):
    """Stands for a weight matrix while a plan runs."""

    weight: torch.nn.Parameter
    thread: int
    """The one in which it stands for the weight. In others nothing should be known of it."""
    uses: dict[Any, tuple[Ledger, torch.Tensor, Sequence[torch.Tensor]]]

    def __new__(cls, weight: torch.nn.Parameter) -> LateWeight:
        late: LateWeight = make_subclass(cls, weight.detach(), weight.requires_grad)
        late.weight = weight
        late.thread = threading.get_ident()
        late.uses = {}
        return late

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        use = _USES.get(func)
        if (
            use is not None
            and torch.is_grad_enabled()
            and not is_any_autocast_enabled()
            and not are_transforms_active()
        ):
            result = use(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        plain_args, plain_kwargs = map_leaves((tuple(args), kwargs or {}), _weight_of)
        return func(*plain_args, **plain_kwargs)

    def tap(self, key: Any, ledger: Ledger, *tensors: torch.Tensor) -> tuple[Ledger, torch.Tensor]:
        """Open a ledger for one kind of use of this weight: the ledger, and the token that its uses hang on."""
        # The tensors are kept because keys name them by id, which a later tensor must not inherit.
        self.uses[key] = (ledger, _Tap.apply(ledger, *tensors), tensors)
        return self.uses[key][:2]


def _weight_of(leaf: Any) -> Any:
    return leaf.weight if isinstance(leaf, LateWeight) else leaf


class _Tap(torch.autograd.Function):
    """Runs backward once all uses have; answers for them."""

    @staticmethod
    def forward(ctx: Any, ledger: Ledger, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.ledger, ctx.count = ledger, len(tensors)
        return tensors[0].new_empty(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        received = ctx.ledger.close()
        return (None, *(received[: ctx.count] if received is not None else [None] * ctx.count))


class _Product(torch.autograd.Function):
    """``input @ weight.T + bias``, or ``input @ weight`` when transposed; weight and bias are credited through the tap."""

    @staticmethod
    def forward(
        ctx: Any,
        ledger: Ledger,
        transposed: bool,
        token: torch.Tensor,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.ledger, ctx.transposed, ctx.has_bias = ledger, transposed, bias is not None
        ctx.save_for_backward(inputs, weight)
        return inputs @ weight if transposed else functional.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        (grad,) = grads
        if grad is None:
            return (None,) * 6
        inputs, weight = ctx.saved_tensors
        back = weight.t() if ctx.transposed else weight
        grad_inputs = grad @ back if ctx.needs_input_grad[3] else None
        rows, grad_rows = inputs, grad
        if grad.ndim != 2:
            rows, grad_rows = inputs.reshape(-1, inputs.shape[-1]), grad.reshape(-1, grad.shape[-1])
        if not torch.is_grad_enabled():
            ctx.ledger.note(rows, grad_rows)
            return None, None, None, grad_inputs, None, None
        grad_weight = rows.t() @ grad_rows if ctx.transposed else grad_rows.t() @ rows
        return None, None, None, grad_inputs, grad_weight, grad_rows.sum(0) if ctx.has_bias else None


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        ledger: Ledger,
        padding_row: int,
        sparse: bool,
        token: torch.Tensor,
        rows: torch.Tensor,
        table: torch.Tensor,
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.ledger, ctx.padding_row, ctx.sparse, ctx.row_count = ledger, padding_row, sparse, len(table)
        ctx.save_for_backward(rows)
        return functional.embedding(rows, table)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        (grad,), (rows,) = grads, ctx.saved_tensors
        if grad is None:
            return (None,) * 6
        flat, grad_rows = rows.reshape(-1), grad.reshape(-1, grad.shape[-1])
        if not torch.is_grad_enabled():
            ctx.ledger.note(flat, grad_rows)
            return None, None, None, None, None, None
        if ctx.sparse:
            return None, None, None, None, None, sparse_rows(flat, grad_rows, ctx.row_count, ctx.padding_row)
        if ctx.padding_row >= 0:
            grad_rows = grad_rows.masked_fill((flat == ctx.padding_row).unsqueeze(1), 0)
        table = grad_rows.new_zeros(ctx.row_count, grad_rows.shape[1]).index_add(0, flat, grad_rows)
        return None, None, None, None, None, table


def _use_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    if type(weight) is not LateWeight or isinstance(input, LateWeight) or isinstance(bias, LateWeight):
        return NotImplemented
    if len(input) >= NARROW_STEP:
        return functional.linear(input, weight.weight, bias)
    known = weight.uses.get(id(bias))
    if known is None:
        book = ProductLedger(transposed=False, has_bias=bias is not None)
        credited = (weight.weight,) if bias is None else (weight.weight, bias)
        ledger, token = weight.tap(id(bias), book, *credited)
    else:
        ledger, token, _ = known
    return _product(ledger, False, token, input, weight.weight, bias)


def _use_product(input: torch.Tensor, other: torch.Tensor | None = None, **others: Any) -> Any:
    if others or type(other) is not LateWeight or isinstance(input, LateWeight) or input.ndim < 2:
        return NotImplemented
    if len(input) >= NARROW_STEP:
        return torch.matmul(input, other.weight)
    known = other.uses.get("product")
    if known is None:
        ledger, token = other.tap("product", ProductLedger(transposed=True, has_bias=False), other.weight)
    else:
        ledger, token, _ = known
    return _product(ledger, True, token, input, other.weight, None)


def _use_embedding(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if type(weight) is not LateWeight or max_norm is not None or scale_grad_by_freq:
        return NotImplemented
    row_count = len(weight.weight)
    padding_row = -1 if padding_idx is None else padding_idx % row_count
    key = ("rows", padding_row, sparse)
    known = weight.uses.get(key)
    if known is None:
        book = (SparseRowsLedger if sparse else RowsLedger)(row_count, padding_row)
        ledger, token = weight.tap(key, book, weight.weight)
    else:
        ledger, token, _ = known
    return _lookup(ledger, padding_row, sparse, token, input, weight.weight)


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`functional.linear`, for code that knows of weights that note their uses: they need not be asked first."""
    if type(weight) is LateWeight and torch.is_grad_enabled():
        result: torch.Tensor = _use_linear(input, weight, bias)
        if result is not NotImplemented:
            return result
    return functional.linear(input, weight, bias)


def embedding(
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """The same for `torch.embedding`."""
    if type(weight) is LateWeight and torch.is_grad_enabled():
        padding = None if padding_idx < 0 else padding_idx
        result: torch.Tensor = _use_embedding(indices, weight, padding, None, 2.0, scale_grad_by_freq, sparse)
        if result is not NotImplemented:
            return result
    return torch.embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)


# Function.apply without its first line, which looks through all arguments for the wrappers of function transforms.
_product = super(torch.autograd.Function, _Product).apply
_lookup = super(torch.autograd.Function, _Lookup).apply

_USES: dict[Any, Callable[..., Any]] = {
    functional.linear: _use_linear,
    functional.embedding: _use_embedding,
    torch.matmul: _use_product,
    torch.mm: _use_product,
    torch.Tensor.matmul: _use_product,
    torch.Tensor.mm: _use_product,
    torch.Tensor.__matmul__: _use_product,
}
