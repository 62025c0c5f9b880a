"""Torch's own modules that count as one operation, each called with the batch first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.rnn import PackedSequence

from foldloom.graph import Type
from foldloom.graph.ragged import Ragged
from foldloom.pytrees import map_leaves
from foldloom.torch_private import global_module_hooks
from foldloom.tracing.functions.shape_inference import Returned
from foldloom.tracing.rules import lstm
from foldloom.tracing.rules.attention import over_padded
from foldloom.tracing.rules.probe import returned_for_ragged

BatchedModule = Callable[..., Any]

_RECURRENT_CELLS = frozenset((nn.RNNCell, nn.LSTMCell, nn.GRUCell))


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
    return any(global_module_hooks) or bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def draws(module: nn.Module) -> bool:
    """Whether one of torch's modules draws random numbers."""
    is_dropping = any(type(part) is nn.Dropout and part.training and part.p for part in module.modules())
    return is_dropping or draws_between_layers(module)


def draws_between_layers(module: nn.Module) -> bool:
    """Whether it is a recurrent one that does."""
    return isinstance(module, nn.RNNBase) and bool(module.training and module.dropout) and module.num_layers > 1


def width_of_layer(module: nn.RNNBase) -> int:
    """How many numbers a layer returns for each row."""
    return (module.proj_size or module.hidden_size) * (2 if module.bidirectional else 1)


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
    dimensions = {len(type.shape) for type in types}
    if is_ragged or len(types) > 3 or dimensions not in ({1}, {2}) or len({type.shape[:-1] for type in types}) > 1:
        return None
    return module if len(types) <= 2 else lambda vector, hidden, cell: module(vector, (hidden, cell))


def takes_rows(module: object, blocks: Sequence[Any]) -> bool:
    """Whether a recurrent cell is called on blocks each of whose members is a batch of its own, mostly of one."""
    return type(module) in _RECURRENT_CELLS and blocks[0].ndim == 3


def call_on_rows(module: Any, blocks: Any) -> Any:
    """Call it on all rows of these together."""
    sizes = blocks[0].shape[:2]
    found = module(*map_leaves(blocks, lambda block: block.flatten(0, 1)))
    return map_leaves(found, lambda rows: rows.unflatten(0, sizes))


def _recurrent(module: Any, types: tuple[Type, ...], is_ragged: bool) -> BatchedModule | None:
    """A sequence of rows: all of them run together, step by step. What is multiplied by dropout between layers may come last."""
    has_noise = types[-1].ragged and len(types[-1].shape) == 3
    states = types[1:-1] if has_noise else types[1:]
    if not is_ragged or len(types[0].shape) != 2 or any(type.ragged or len(type.shape) != 2 for type in states):
        return None
    if len(states) > 2:
        return None

    def run(sequences: Ragged, *others: Any) -> Any:
        given = [state.transpose(0, 1).contiguous() for state in others[: len(states)]]
        initial = None if not given else given[0] if len(given) == 1 else tuple(given)
        return _over_sequences(module, sequences, initial, others[-1].values if has_noise else None)

    return run


def _over_sequences(module: Any, sequences: Ragged, initial: Any, noise: torch.Tensor | None) -> Any:
    """The states of each sequence, and the last ones with sequences first."""
    is_lstm = type(module) is nn.LSTM
    if is_lstm and torch.is_autocast_enabled("cpu"):
        states, final = _by_length(module, sequences, initial)  # what is packed has another dtype there
    elif is_lstm and lstm.takes(module, sequences):
        states, final = lstm.run(module, sequences, initial, noise)
    else:
        states, final = packed(module, sequences, initial, noise)
    return states, tuple([f.transpose(0, 1) for f in final]) if isinstance(final, tuple) else final.transpose(0, 1)


def packed(module: Any, sequences: Ragged, initial: Any, noise: torch.Tensor | None = None) -> tuple[Ragged, Any]:
    """By torch's own means: sequences longest first, all of them step by step, and back in their own order."""
    lengths = sequences.lengths
    order = torch.argsort(lengths, descending=True, stable=True)
    steps = lstm.Steps(lengths, order, directions=1)
    (positions,) = steps.positions
    by_time = PackedSequence(sequences.values.index_select(0, positions), steps.counts, None, None)
    initial = _reordered(initial, order)
    if noise is not None:
        output, final = _layer_by_layer(module, by_time, initial, noise.index_select(0, positions))
    else:
        packed_output, final = module(by_time, initial) if initial is not None else module(by_time)
        output = packed_output.data
    values = torch.empty_like(output).index_copy(0, positions, output)
    back = torch.argsort(order)
    if isinstance(final, tuple):
        return Ragged(values, lengths), tuple([item.index_select(1, back) for item in final])
    return Ragged(values, lengths), final.index_select(1, back)


def _layer_by_layer(module: Any, by_time: PackedSequence, initial: Any, noise: torch.Tensor) -> tuple[Any, Any]:
    """What a recurrent module returns for packed sequences, with numbers that each layer but the last is multiplied by."""
    function: Any = {nn.LSTM: torch.lstm, nn.GRU: torch.gru}.get(type(module))
    if function is None:
        function = torch.rnn_tanh if module.nonlinearity == "tanh" else torch.rnn_relu
    directions, sequences = 2 if module.bidirectional else 1, int(by_time.batch_sizes[0])
    weights = [getattr(module, name) for name in module._flat_weights_names]
    count = len(weights) // module.num_layers
    values, last = by_time.data, []
    sizes = [module.proj_size or module.hidden_size, *([module.hidden_size] if type(module) is nn.LSTM else [])]
    for layer in range(module.num_layers):
        if initial is None:
            states = tuple([values.new_zeros(directions, sequences, size) for size in sizes])
        else:
            given = initial if isinstance(initial, tuple) else (initial,)
            states = tuple([state[layer * directions : (layer + 1) * directions] for state in given])
        values, *final = function(
            values, by_time.batch_sizes, states if len(states) > 1 else states[0],
            weights[layer * count : (layer + 1) * count], module.bias, 1, 0.0, module.training, module.bidirectional,
        )  # fmt: skip
        last.append(final)
        if layer < module.num_layers - 1:
            values = values * noise[:, layer]
    joined = tuple([torch.cat(parts) for parts in zip(*last, strict=True)])
    return values, joined if len(joined) > 1 else joined[0]


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
    if len(types) != 1 or not len(module) or any(is_hooked(part) for part in module) or _may_touch_its_argument(module):
        return None
    first, *others = module
    if not all(type(part) in _CHAINABLE for part in others):
        return None
    if type(first) is nn.Embedding and first.max_norm is None:
        return _embedding(first, types, is_ragged) and (_rows(module) if is_ragged else module)
    return _on_last_dimension(module, types, is_ragged) if type(first) in _CHAINABLE else None


def _encoder_layer(module: Any, types: tuple[Type, ...], is_ragged: bool) -> BatchedModule | None:
    """A layer of a transformer, over sequences of any lengths."""
    parts = [part for part in module.modules() if part is not module]
    if not is_ragged or len(types) != 1 or len(types[0].shape) != 2:
        return None
    if any(type(part) not in _OF_ENCODER_LAYERS or is_hooked(part) for part in parts):
        return None
    draws = any(type(part) is nn.Dropout and part.training and part.p > 0 for part in parts)
    is_known = isinstance(module.activation, nn.Module) or module.activation in (functional.relu, functional.gelu)
    if draws or not is_known or (module.self_attn.dropout and module.self_attn.training):
        return None
    return lambda sequences: _run_encoder_layer(module, sequences)


def _run_encoder_layer(module: Any, sequences: Ragged) -> Ragged:
    own = module.self_attn

    def attend(ignored: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        found, _ = functional.multi_head_attention_forward(
            x, x, x, own.embed_dim, own.num_heads, own.in_proj_weight, own.in_proj_bias, own.bias_k, own.bias_v,
            own.add_zero_attn, 0.0, own.out_proj.weight, own.out_proj.bias, training=False, key_padding_mask=ignored,
            need_weights=False,
        )  # fmt: skip
        return found

    def attended(x: torch.Tensor) -> torch.Tensor:
        return over_padded([Ragged(x, sequences.lengths)], attend).values

    def fed_forward(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = module.linear2(module.activation(module.linear1(x)))
        return found

    x = sequences.values
    if module.norm_first:
        x = x + attended(module.norm1(x))
        x = x + fed_forward(module.norm2(x))
    else:
        x = module.norm1(x + attended(x))
        x = module.norm2(x + fed_forward(x))
    return Ragged(x, sequences.lengths)


_ELEMENTWISE = (
    nn.CELU, nn.Dropout, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Identity,
    nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink,
    nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Threshold,
)  # fmt: skip
_CHAINABLE = frozenset((*_ELEMENTWISE, nn.Linear))

_OF_ENCODER_LAYERS = frozenset((*_CHAINABLE, nn.MultiheadAttention, nn.LayerNorm, NonDynamicallyQuantizableLinear))

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
    nn.TransformerEncoderLayer: _encoder_layer,
}
