"""The blocks of a model as data, from which `foldloom.runtime` makes the same calls of cells without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from foldloom.blocks import block as basic
from foldloom.blocks.block import Block
from foldloom.blocks.combinators import composition, computing, dispatch, inputs, items, metrics, reductions, sequences
from foldloom.blocks.compiler.lowering import all_blocks
from foldloom.blocks.compiler.model import Model
from foldloom.blocks.compiler.program import metrics_of
from foldloom.blocks.inference import head, known
from foldloom.blocks.printing import shortened
from foldloom.blocks.types import (
    BlockType,
    BroadcastSequenceType,
    SequenceType,
    TensorType,
    TupleType,
    VoidType,
)
from foldloom.exporting.packing import NotPortableError, packed
from foldloom.runtime.description import packed_array

Described = dict[str, Any]


def described_program(model: Model) -> Described:
    """All blocks of a model, numbered in the order of `all_blocks`. Raises `NotPortableError` for what only Python with torch can do."""
    blocks = list(all_blocks(model.root))
    describing = _Describing(model, {block: number for number, block in enumerate(blocks)})
    return {
        "blocks": [describing(block) for block in blocks],
        "root": describing.number[model.root],
        "gives": _gives(known(model.root.gives)),
        "metrics": dict.fromkeys(metrics_of(model.root), True),
    }


class _Describing:
    def __init__(self, model: Model, number: dict[Block, int]) -> None:
        self._model = model
        self.number = number

    def __call__(self, block: Block) -> Described:
        for kind in type(block).__mro__:
            describe = _KINDS.get(kind)
            if describe is not None:
                try:
                    return {**describe(self, block), "says": shortened(block)}
                except NotPortableError as error:
                    raise NotPortableError(f"{shortened(block)} cannot be described without torch: {error}") from error
        raise NotPortableError(f"{shortened(block)} is code that only Python with torch can run")

    def cell(self, block: Block) -> str:
        return f"cells.{self._model._name_of_block[block]}"

    def dtype(self, declared: str) -> str:
        return self._model._dtypes.get(declared, declared)

    def zeros(self, type: BlockType) -> Any:
        """Zeros of a type as constants."""
        if isinstance(type, TensorType):
            return packed_array(np.zeros(type.fixed(), self.dtype(type.dtype)))
        if isinstance(type, TupleType):
            return {"tuple": [self.zeros(item) for item in type.items]}
        return [] if isinstance(type, SequenceType) else None


_KINDS: dict[type, Callable[[_Describing, Any], Described]] = {}


def _describes(kind: type) -> Callable[[Callable[[_Describing, Any], Described]], Any]:
    def register(describe: Callable[[_Describing, Any], Described]) -> Callable[[_Describing, Any], Described]:
        _KINDS[kind] = describe
        return describe

    return register


def _gives(type: BlockType) -> Any:
    """What the root gives, as far as it matters to what the user gets."""
    if isinstance(type, TensorType):
        return "tensor"
    if isinstance(type, VoidType):
        return "nothing"
    if isinstance(type, (TupleType, SequenceType)):
        return ["tuple" if isinstance(type, TupleType) else "list", [_gives(part) for part in type.parts]]
    raise NotPortableError(f"the output {type} is no tensor")


@_describes(basic.Identity)
def _identity(_: _Describing, block: Block) -> Described:
    return {"kind": "identity"}


_KINDS[sequences.Broadcast] = _identity


@_describes(basic.Pipe)
def _pipe(describing: _Describing, block: basic.Pipe) -> Described:
    return {"kind": "pipe", "stages": [describing.number[stage] for stage in block._stages]}


@_describes(composition.Record)
def _record(describing: _Describing, block: composition.Record) -> Described:
    fields = zip(block._keys, block._blocks, strict=True)
    return {"kind": "record", "fields": [[packed(key), describing.number[part]] for key, part in fields]}


@_describes(composition.AllOf)
def _all_of(describing: _Describing, block: composition.AllOf) -> Described:
    return {"kind": "all_of", "blocks": [describing.number[part] for part in block._blocks]}


@_describes(composition.Composition)
def _composition(describing: _Describing, block: composition.Composition) -> Described:
    place: dict[Block, int] = {block.input: 0}
    steps = []
    output: list[int] = []
    for part in block._in_order():
        sources = [place[giver] for giver in block._sources[part]]
        if part is block.output:
            output = sources
            continue
        steps.append([describing.number[part], sources])
        place[part] = len(steps)
    return {"kind": "composition", "steps": steps, "output": output}


@_describes(items.GetItem)
def _get_item(_: _Describing, block: items.GetItem) -> Described:
    if isinstance(head(block.takes), BroadcastSequenceType):
        return {"kind": "identity"}
    return {"kind": "get_item", "key": packed(block._key)}


@_describes(items.Slice)
def _slice(_: _Describing, block: items.Slice) -> Described:
    return {"kind": "get_item", "key": packed(block._slice)}


@_describes(items.Nth)
def _nth(_: _Describing, block: items.Nth) -> Described:
    return {"kind": "first" if isinstance(head(block._sequence), BroadcastSequenceType) else "nth"}


@_describes(items.Length)
def _length(describing: _Describing, block: items.Length) -> Described:
    return {"kind": "length", "dtype": describing.dtype(block._type.dtype)}


@_describes(sequences.Map)
def _map(describing: _Describing, block: sequences.Map) -> Described:
    if isinstance(head(block.takes), BroadcastSequenceType):
        return {"kind": "pipe", "stages": [describing.number[block._element]]}
    return {"kind": "map", "element": describing.number[block._element]}


@_describes(sequences.Zip)
def _zip(_: _Describing, block: sequences.Zip) -> Described:
    return {"kind": "zip", "endless": block._endless(head(block.takes))}


@_describes(sequences.NGrams)
def _ngrams(_: _Describing, block: sequences.NGrams) -> Described:
    return {"kind": "ngrams", "n": block._n}


@_describes(sequences.Fold)
def _fold(describing: _Describing, block: sequences.Fold) -> Described:
    return {"kind": "fold", "combine": describing.number[block._combine], "start": describing.number[block._start]}


@_describes(reductions.Reduce)
def _reduce(describing: _Describing, block: reductions.Reduce) -> Described:
    default = None if block._default is None else describing.number[block._default]
    zeros = describing.zeros(known(block.gives)) if default is None else None
    return {"kind": "reduce", "combine": describing.number[block._combine], "default": default, "zeros": zeros}


@_describes(reductions.RNN)
def _rnn(describing: _Describing, block: reductions.RNN) -> Described:
    initial = None if block._initial is None else describing.number[block._initial]
    zeros = describing.zeros(known(block._state)) if initial is None and not block._from_input else None
    return {
        "kind": "rnn",
        "rnn_cell": describing.number[block._cell],
        "initial": initial,
        "zeros": zeros,
        "from_input": block._from_input,
    }


@_describes(computing.Function)
def _function(describing: _Describing, block: computing.Function) -> Described:
    return {
        "kind": "function",
        "cell": describing.cell(block),
        "takes": _nesting(known(block.takes)),
        "nested": block._calls_nested,
    }


def _nesting(type: BlockType) -> Any:
    return [_nesting(item) for item in type.items] if isinstance(type, TupleType) else None


@_describes(computing.Stack)
def _stack(describing: _Describing, block: computing.Stack) -> Described:
    return {"kind": "stack", "cell": describing.cell(block), "none": describing.zeros(known(block.gives))}


@_describes(computing.Zeros)
def _zeros(describing: _Describing, block: computing.Zeros) -> Described:
    return {"kind": "constant", "value": describing.zeros(known(block.gives))}


@_describes(computing.FromTensor)
def _from_tensor(describing: _Describing, block: computing.FromTensor) -> Described:
    if block._learns:
        return {"kind": "learned", "cell": describing.cell(block)}
    type = known(block.gives)
    assert isinstance(type, TensorType)
    assert isinstance(block._tensor, torch.Tensor)
    dtype = getattr(torch, describing.dtype(type.dtype))
    return {"kind": "constant", "value": packed_array(block._tensor.detach().cpu().to(dtype).numpy())}


@_describes(inputs.Tensor)
def _tensor(describing: _Describing, block: inputs.Tensor) -> Described:
    return {"kind": "tensor", "shape": list(block._type.fixed()), "dtype": describing.dtype(block._type.dtype)}


@_describes(inputs.InputTransform)
def _transform(_: _Describing, block: inputs.InputTransform) -> Described:
    return {"kind": "transform", "function": packed(block._py_fn)}


@_describes(inputs.OneHotFromList)
def _one_hot(describing: _Describing, block: inputs.OneHotFromList) -> Described:
    return {
        "kind": "one_hot",
        "elements": packed(block._elements),
        "dtype": describing.dtype(block._type.dtype),
        "strict": block._strict,
    }


@_describes(dispatch.OneOf)
def _one_of(describing: _Describing, block: dispatch.OneOf) -> Described:
    return {
        "kind": "one_of",
        "key": describing.number[block._key],
        "pre": None if block._pre is None else describing.number[block._pre],
        "cases": [[packed(key), describing.number[case]] for key, case in block._cases.items()],
    }


@_describes(dispatch.Optional)
def _optional(describing: _Describing, block: dispatch.Optional) -> Described:
    none = None if block._none is None else describing.number[block._none]
    zeros = describing.zeros(known(block.gives)) if none is None else None
    return {"kind": "optional", "some": describing.number[block._some], "none": none, "zeros": zeros}


@_describes(dispatch.Reference)
def _reference(describing: _Describing, block: dispatch.Reference) -> Described:
    assert block.declaration.resolved is not None
    return {"kind": "reference", "block": describing.number[block.declaration.resolved]}


@_describes(metrics.Metric)
def _metric(_: _Describing, block: metrics.Metric) -> Described:
    return {"kind": "metric", "name": block._name, "labelled": isinstance(head(block.takes), TupleType)}


@_describes(metrics.Void)
def _void(_: _Describing, block: metrics.Void) -> Described:
    return {"kind": "void"}
