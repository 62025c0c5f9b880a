"""Torch's own modules that count as one operation, each called with the batch first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from foldloom.graph import Type
from foldloom.graph.ragged import Ragged
from foldloom.tracing.functions.shape_inference import Returned
from foldloom.tracing.rules import lstm
from foldloom.tracing.rules.probe import returned_for_ragged

BatchedModule = Callable[..., Any]


def batched_module(module: nn.Module, types: tuple[Type, ...], is_ragged: bool) -> BatchedModule | None:
    """How to call a module on the blocks of operands of these types; None if it must be taken apart into functions."""
    rule = MODULES.get(type(module))
    return rule(module, types, is_ragged) if rule is not None else None


def can_be_batched(module: nn.Module, types: tuple[Type, ...], is_ragged: bool) -> bool:
    return batched_module(module, types, is_ragged) is not None


def returned_by_module(form: BatchedModule, types: tuple[Type, ...]) -> Returned:
    with torch.random.fork_rng():
        return returned_for_ragged(form, types)


def flat_results(result: Any) -> Sequence[Any]:
    """The leaves of what a function or module returned."""
    if not isinstance(result, (tuple, list)):
        return (result,)
    if any(isinstance(item, (tuple, list)) for item in result):
        return [leaf for item in result for leaf in flat_results(item)]
    return result


def is_hooked(module: nn.Module) -> bool:
    """Hooks want to see one example at a time."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def _on_last_dimension(module: Any, types: tuple[Type, ...], is_ragged: bool) -> BatchedModule | None:
    """Any number of dimensions may stand before the one that it works on."""
    if len(types) != 1 or len(types[0].shape) < 1 + is_ragged:
        return None
    return _rows(module) if is_ragged else module


def _on_any_dimensions(module: Any, types: tuple[Type, ...], is_ragged: bool) -> BatchedModule | None:
    if len(types) != 1 or _may_touch_its_argument([module]):
        return None
    return _rows(module) if is_ragged else module


def _may_touch_its_argument(chain: Iterable[nn.Module]) -> bool:
    """Whether modules one after the other change what the first is given, or return it as it is: the caller may change it then."""
    for module in chain:
        if getattr(module, "inplace", False):
            return True
        if not isinstance(module, (nn.Identity, nn.Dropout)):
            return False
    return True


def _embedding(module: Any, types: tuple[Type, ...], is_ragged: bool) -> BatchedModule | None:
    """Words counted for the scale of their gradients must be those of one example."""
    return None if module.scale_grad_by_freq else _on_any_dimensions(module, types, is_ragged)


def _rows(module: Any) -> BatchedModule:
    return lambda ragged: Ragged(module(ragged.values), ragged.lengths)


def _layer_norm(module: Any, types: tuple[Type, ...], is_ragged: bool) -> BatchedModule | None:
    if len(types) != 1 or len(types[0].shape) < len(module.normalized_shape) + is_ragged:
        return None
    return _rows(module) if is_ragged else module


def _recurrent_cell(module: Any, types: tuple[Type, ...], is_ragged: bool) -> BatchedModule | None:
    if is_ragged or any(len(type.shape) != 1 for type in types):
        return None
    if len(types) == 3:
        return lambda vector, hidden, cell: module(vector, (hidden, cell))
    return module if len(types) <= 2 else None


def _recurrent(module: Any, types: tuple[Type, ...], is_ragged: bool) -> BatchedModule | None:
    """A sequence of rows: all of them run together, step by step."""
    if not is_ragged or len(types[0].shape) != 2 or any(type.ragged or len(type.shape) != 2 for type in types[1:]):
        return None
    if len(types) == 2:
        return lambda sequences, hidden: _over_sequences(module, sequences, hidden.transpose(0, 1).contiguous())
    if len(types) == 3:
        return lambda sequences, hidden, cell: _over_sequences(
            module, sequences, (hidden.transpose(0, 1).contiguous(), cell.transpose(0, 1).contiguous())
        )
    return lambda sequences: _over_sequences(module, sequences, None)


def _over_sequences(module: Any, sequences: Ragged, initial: Any) -> Any:
    """The states of each sequence, and the last ones with sequences first."""
    is_lstm = type(module) is nn.LSTM
    run = lstm.run if is_lstm and lstm.takes(module, sequences) else packed
    if is_lstm and torch.is_autocast_enabled("cpu"):
        run = _by_length  # what is packed has another dtype there
    states, final = run(module, sequences, initial)
    return states, tuple([f.transpose(0, 1) for f in final]) if isinstance(final, tuple) else final.transpose(0, 1)


def packed(module: Any, sequences: Ragged, initial: Any) -> tuple[Ragged, Any]:
    """By torch's own means: sequences longest first, all of them step by step, and back in their own order."""
    lengths = sequences.lengths
    order = torch.argsort(lengths, descending=True, stable=True)
    steps = lstm.Steps(lengths, order, directions=1)
    (positions,) = steps.positions
    by_time = PackedSequence(sequences.values.index_select(0, positions), steps.counts, None, None)
    initial = _reordered(initial, order)
    output, final = module(by_time, initial) if initial is not None else module(by_time)
    values = torch.empty_like(output.data).index_copy(0, positions, output.data)
    back = torch.argsort(order)
    if isinstance(final, tuple):
        return Ragged(values, lengths), tuple([item.index_select(1, back) for item in final])
    return Ragged(values, lengths), final.index_select(1, back)


def _by_length(module: Any, sequences: Ragged, initial: Any) -> tuple[Ragged, Any]:
    """Sequences of one length at a time, as tensors."""
    lengths = sequences.lengths
    starts = lengths.cumsum(0) - lengths
    places, members, states, final = [], [], [], []
    for length in lengths.unique().tolist():
        chosen = (lengths == length).nonzero()[:, 0]
        rows = starts[chosen] + torch.arange(length)[:, None]
        block = sequences.values[rows]
        given = (block.transpose(0, 1) if module.batch_first else block, _reordered(initial, chosen))
        output, last = module(*given) if initial is not None else module(given[0])
        states.append((output.transpose(0, 1) if module.batch_first else output).flatten(0, 1))
        places.append(rows.flatten())
        members.append(chosen)
        final.append(last)
    back = torch.argsort(torch.cat(members))
    values = torch.cat(states).index_select(0, torch.argsort(torch.cat(places)))
    return Ragged(values, lengths), tuple([torch.cat(f, 1).index_select(1, back) for f in zip(*final, strict=True)])


def _reordered(initial: Any, order: torch.Tensor) -> Any:
    if initial is None:
        return None
    if isinstance(initial, tuple):
        return tuple([item.index_select(1, order) for item in initial])
    return initial.index_select(1, order)


def _sequential(module: Any, types: tuple[Type, ...], is_ragged: bool) -> BatchedModule | None:
    """One operation, if all its parts go number by number or along the last dimension."""
    if (
        len(types) != 1
        or not len(module)
        or not all(type(part) in _CHAINABLE and not is_hooked(part) for part in module)
        or _may_touch_its_argument(module)
    ):
        return None
    return _on_last_dimension(module, types, is_ragged)


_ELEMENTWISE = (
    nn.CELU, nn.Dropout, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Identity,
    nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink,
    nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Threshold,
)  # fmt: skip
_CHAINABLE = frozenset((*_ELEMENTWISE, nn.Linear))

MODULES: dict[type, Callable[[Any, tuple[Type, ...], bool], BatchedModule | None]] = {
    **dict.fromkeys(_ELEMENTWISE, _on_any_dimensions),
    nn.Linear: _on_last_dimension,
    nn.Sequential: _sequential,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.LSTMCell: _recurrent_cell,
    nn.GRUCell: _recurrent_cell,
    nn.RNNCell: _recurrent_cell,
    nn.LSTM: _recurrent,
    nn.GRU: _recurrent,
    nn.RNN: _recurrent,
}
