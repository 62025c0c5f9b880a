"""The static graph: all cells of a model in one module with dynamic shapes.

All values of one type are rows of one tensor, their arena. A stage gathers the operands of all its calls, runs its ops,
and writes their outputs; a loop does so in every round and carries the arenas that it writes. The graph gets the rows
to read and write as index tensors of dynamic size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from foldloom.exporting.tracing import Traced, weight_key
from foldloom.runtime.description import Description, OpOf, Stage
from foldloom.torch_private import while_loop


class StaticGraph(torch.nn.Module):
    """Takes the inputs that the description names, in order. Returns the requested values of each type."""

    def __init__(
        self,
        description: Description,
        kernels: Sequence[Traced],
        named: Mapping[tuple[Any, ...], tuple[str, Tensor]],
    ) -> None:
        super().__init__()
        self.description = description
        self._graphs = [kernel.graph for kernel in kernels]
        self._names = description.input_names()
        name_of_weight: dict[tuple[Any, ...], str] = {}
        self._weights_of_op = [
            [self._add_weight(weight, named, name_of_weight) for weight in kernel.weights] for kernel in kernels
        ]

    def _add_weight(
        self,
        weight: Tensor,
        named: Mapping[tuple[Any, ...], tuple[str, Tensor]],
        name_of_weight: dict[tuple[Any, ...], str],
    ) -> str:
        """The name of a weight in this module. Each weight is registered once, and a parameter of the user's as
        itself."""
        key = weight_key(weight)
        known = name_of_weight.get(key)
        if known is not None:
            return known
        path, own = named.get(key, (f"constant_{len(name_of_weight)}", weight))
        name = path.replace(".", "_")
        while hasattr(self, name):
            name += "_"
        if isinstance(own, torch.nn.Parameter):
            self.register_parameter(name, own)
        else:
            self.register_buffer(name, own)
        name_of_weight[key] = name
        return name

    def forward(self, *feeds: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self._names, feeds, strict=True))
        types = range(len(self.description.types))
        arenas = [given[f"arena_{type}"] for type in types]
        for number, stage in enumerate(self.description.stages):
            if not stage.loop:
                arenas = self._written(stage, given, arenas)
                continue
            for part in range(stage.parts):
                arenas = self._loop(number, part, stage, given, arenas)
        return tuple([arenas[type].index_select(0, given[f"output_{type}"]) for type in types])

    def _loop(
        self, number: int, part: int, stage: Stage, given: Mapping[str, Tensor], arenas: Sequence[Tensor]
    ) -> list[Tensor]:
        carried = sorted({type for op in stage.ops for type in self.description.ops[op].outputs})
        rounds = given[f"rounds_{number}_{part}"]
        indices = {name: given[f"{name}_{part}"] for op in stage.ops for name in self.description.index_names(op)}

        def is_left(round: Tensor, *_: Tensor) -> Tensor:
            return round < rounds

        def run(round: Tensor, *carried_arenas: Tensor) -> tuple[Tensor, ...]:
            now = list(arenas)
            for type, arena in zip(carried, carried_arenas, strict=True):
                now[type] = arena
            at = round.view(1)
            of_round = {name: index.index_select(0, at).squeeze(0) for name, index in indices.items()}
            written = self._written(stage, of_round, now)
            return round + 1, *[written[type] for type in carried]

        start = torch.zeros((), dtype=torch.int64, device=rounds.device)
        _, *last = while_loop(is_left, run, (start, *[arenas[type] for type in carried]))
        result = list(arenas)
        for type, arena in zip(carried, last, strict=True):
            # With gradients, while_loop returns a view of a tensor of unknown size, which the next loop cannot take.
            result[type] = arena.clone()
        return result

    def _written(self, stage: Stage, given: Mapping[str, Tensor], arenas: Sequence[Tensor]) -> list[Tensor]:
        """The arenas after the ops of a stage have run."""
        rows: list[list[Tensor]] = [[] for _ in arenas]
        blocks: list[list[Tensor]] = [[] for _ in arenas]
        for number in stage.ops:
            op = self.description.ops[number]
            weights = [getattr(self, name) for name in self._weights_of_op[number]]
            outputs = self._graphs[number](*weights, *_operands(number, op, given, arenas))
            for type, output, place in zip(op.outputs, outputs, _places(number, op, given), strict=True):
                rows[type].append(place)
                blocks[type].append(output)
        return [
            arena if not own_rows else arena.index_put((_joined(own_rows),), _joined(own_blocks))
            for arena, own_rows, own_blocks in zip(arenas, rows, blocks, strict=True)
        ]


def _operands(number: int, op: OpOf, given: Mapping[str, Tensor], arenas: Sequence[Tensor]) -> list[Tensor]:
    operands = []
    dense = 0
    for slot, type in enumerate(op.inputs):
        if slot in op.ragged_inputs:
            operands += [
                arenas[type].index_select(0, given[f"rows_{number}_{slot}"]),
                given[f"lengths_{number}_{slot}"],
            ]
        else:
            operands.append(arenas[type].index_select(0, given[f"index_{number}"][dense]))
            dense += 1
    return operands


def _places(number: int, op: OpOf, given: Mapping[str, Tensor]) -> list[Tensor]:
    """The rows that each output is written to."""
    next_row = len(op.dense_inputs)
    places = []
    for slot in range(len(op.outputs)):
        if slot in op.ragged_outputs:
            places.append(given[f"made_{number}_{slot}"])
        else:
            places.append(given[f"index_{number}"][next_row])
            next_row += 1
    return places


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
