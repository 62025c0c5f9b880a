"""What a model consists of, from its blocks and from recordings of examples: types, ops, and which ops read which
others' results."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from foldloom.blocks.block import Block
from foldloom.blocks.compiler.model import Model
from foldloom.blocks.lowering.cells import NamedCell
from foldloom.blocks.printing import shortened
from foldloom.errors import CellError, ExportError
from foldloom.exporting.flows import readers_in
from foldloom.exporting.stages import stages_of
from foldloom.graph import Op, Type
from foldloom.graph.recording import Recording
from foldloom.pytrees import Nesting
from foldloom.runtime.description import Description, OpOf, TypeOf
from foldloom.runtime.recordings import identity_of, ops_of_results
from foldloom.tracing.cells.core import Settings, Signature
from foldloom.tracing.cells.lookup import find_cell
from foldloom.tracing.flushing.kernels import is_function

UNKNOWN_TO_NUMPY = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


class OpTable:
    """The ops of a model, numbered, and which of them read whose results."""

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._given = owner.given_name if isinstance(owner, Model) else ""
        self.ops: dict[Op, int] = {}
        self.readers: dict[int, set[int]] = {}
        self._types: dict[Type, int] = {}

    def add_recording(self, recording: Recording) -> None:
        graph = recording.graph
        only_results = ops_of_results(graph)
        for number, op in enumerate(graph.ops):
            if number not in only_results and op.key != self._given:
                self.add_op(op)
        numbers = np.array([self.ops.get(op, -1) for op in graph.ops], np.int64)[graph.op_of_node]
        makers = numbers[graph.node_of_value[graph.operands]]
        readers = numbers[np.repeat(np.arange(len(numbers)), graph.arity_of_node)]
        for maker, reader in set(zip(makers.tolist(), readers.tolist(), strict=True)):
            if maker >= 0 and reader >= 0:
                self.add_reader(maker, reader)

    def add_op(self, op: Op) -> None:
        for type in (*op.inputs, *op.outputs):
            self.add_type(type.row)
        if not op.is_input:
            self.ops.setdefault(op, len(self.ops))

    def add_type(self, type: Type) -> int:
        if type.dtype in UNKNOWN_TO_NUMPY:
            raise ExportError(
                f"a value of {type} cannot be exported, because numpy has no {type.dtype}. Write `model.float()` before exporting"
            )
        return self._types.setdefault(type, len(self._types))

    def add_reader(self, maker: int, reader: int) -> None:
        self.readers.setdefault(maker, set()).add(reader)

    def description(self, program: dict[str, Any] | None, why: str, version: str, parts: int) -> Description:
        return Description(
            types=tuple([TypeOf(type.shape, type.dtype) for type in self._types]),
            ops=tuple([self._described(op) for op in self.ops]),
            stages=stages_of(len(self.ops), self._likely_readers(), parts),
            program=program,
            why=why,
            given=self._given,
            version=version,
        )

    def _likely_readers(self) -> dict[int, set[int]]:
        """Who reads whose results, where calls of a cell that differ only in the length of a list count as one: if a
        node with two children was seen below one with three, the reverse will occur too."""
        alike: dict[Hashable, list[int]] = {}
        for op, number in self.ops.items():
            alike.setdefault(_kind(op), []).append(number)
        kind = {number: numbers for numbers in alike.values() for number in numbers}
        likely: dict[int, set[int]] = {}
        for maker, readers in self.readers.items():
            of_kinds = {number for reader in readers for number in kind[reader]}
            for number in kind[maker]:
                likely.setdefault(number, set()).update(of_kinds)
        return likely

    def _described(self, op: Op) -> OpOf:
        nesting: Any = None
        settings: Any = ()
        returns: Any = None
        if not is_function(op):
            nesting, settings = op.settings  # type: ignore[misc]
            returns = find_cell(op.key, self._owner).signature(op.inputs, nesting, settings).returns
        return OpOf(
            cell=op.key.partition("#")[0],
            label=op.label or op.key,
            identity=identity_of(op),
            inputs=tuple([self._types[type.row] for type in op.inputs]),
            outputs=tuple([self._types[type.row] for type in op.outputs]),
            nesting=json_nesting(nesting),
            settings=tuple([(name, repr(value)) for name, value, _ in settings]),
            returns=json_nesting(returns),
            ragged_inputs=tuple([slot for slot, type in enumerate(op.inputs) if type.ragged]),
            ragged_outputs=tuple([slot for slot, type in enumerate(op.outputs) if type.ragged]),
        )


def _kind(op: Op) -> Hashable:
    """Equal for calls of a cell that differ only in the length of a list. Calls of functions are never equal."""
    if is_function(op):
        return op
    settings: Any = op.settings
    return op.key, settings[1], frozenset(op.inputs), op.outputs


def json_nesting(nesting: Any) -> Any:
    """The nesting of arguments or results, as JSON."""
    if nesting is None:
        return None
    kind, keys, parts = nesting
    name = "dict" if kind is dict else "list" if kind is list else "tuple"
    return name, keys if kind is dict else len(parts), tuple([json_nesting(part) for part in parts])


def add_blocks(table: OpTable, model: Model, program: dict[str, Any] | None, why: str, has_examples: bool) -> None:
    """Add the ops that the blocks of a model call and their order, as far as the types determine them. Examples must
    show the rest."""
    op_of_block: dict[Block, int] = {}
    missing = [why] if program is None else []
    for block, name in model.cell_names.items():
        cell = find_cell(name, model)
        op = _SignatureProbe(name, cell.label, cell).op_of(block, model.dtypes)
        if op is None:
            missing.append(
                f"{shortened(block)} takes an extent or a number of tensors that differs from example to example"
            )
        else:
            table.add_op(op)
            op_of_block[block] = table.ops[op]
    if missing and not has_examples:
        raise ExportError(
            f"what this model calls is not known without examples, `fl.export(model, path, examples)`: {missing[0]}"
        )
    if program is not None and not missing:
        for maker, reader in readers_in(model.root, op_of_block):
            table.add_reader(maker, reader)


class _SignatureProbe(NamedCell):
    """A cell that notes the ops whose signatures are inferred."""

    def op_of(self, block: Block, dtypes: Mapping[str, str]) -> Op | None:
        """The op that a block calls; None if it calls several, depending on the example."""
        self.__dict__["ops"] = {}
        try:
            block.infer_signatures(self, dtypes)
        except CellError:
            # A function with a fixed dtype may reject the dtype of the weights.
            return None
        ops = list(self.__dict__["ops"])
        return ops[0] if len(ops) == 1 else None

    def signature(self, types: tuple[Type, ...], nesting: Nesting, settings: Settings) -> Signature:
        found = super().signature(types, nesting, settings)
        self.__dict__["ops"][found.op] = None
        return found
