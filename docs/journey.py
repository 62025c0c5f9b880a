"""One small tree through every room of Foldloom. Run it, and read it beside the package: each part prints what a room makes.

The tests run this file.
"""

from __future__ import annotations

import torch
from torch import nn

import foldloom as fl
from foldloom.execution import Buffers, Kernel, run_one_by_one, run_plan
from foldloom.execution.engine import column_to_tensor
from foldloom.planning.placement import place
from foldloom.tracing.cells.core import find_cell

torch.manual_seed(0)


class Model(nn.Module):
    """((1 2) 3) becomes merge(merge(leaf(1), leaf(2)), leaf(3))."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf = fl.cell(nn.Embedding(5, 2))
        self.merge = fl.cell(nn.Bilinear(2, 2, 2))

    def forward(self, tree: object) -> torch.Tensor:
        if isinstance(tree, tuple):
            return self.merge(self(tree[0]), self(tree[1]))
        return self.leaf(tree)


model = Model()
trees = [((1, 2), 3), (4, 1)]

print("\n--- recording: each example once, as columns ---")
recordings = [fl.record(model, tree) for tree in trees]
first = recordings[0]
print(first)
print("op of each node     ", first.graph.op_of_node)
print("operands, as values ", first.graph.operands)
print("depth of each node  ", first.graph.depth_of_node)
print("inputs that came in ", first.inputs)

print("\n--- merging: a minibatch is a concatenation with offsets ---")
from foldloom.graph.recording import merge_recordings  # noqa: E402

merged = merge_recordings(recordings)
print(merged.graph)

print("\n--- scheduling: the step of each node (-1 is an input) ---")
schedules = {scheduler: scheduler.schedule(merged.graph) for scheduler in (fl.ByDepth(), fl.ByAgenda(), fl.OneByOne())}
for scheduler, schedule in schedules.items():
    print(f"{scheduler!r:<12} {schedule}")

print("\n--- placement: where each value lives, and the plan ---")
plan = place(merged.graph, fl.ByDepth().schedule(merged.graph))
plan.check()
print(plan)

print("\n--- execution: the plan's steps over arenas ---")
kernels: list[Kernel | None] = [None if op.is_input else find_cell(op.key, model).kernel(op) for op in merged.graph.ops]
given_ops = [op for op in merged.graph.ops if op.is_input]
given = [column_to_tensor(op, column, torch.device("cpu")) for op, column in zip(given_ops, merged.inputs, strict=True)]
placed = [tensor[torch.from_numpy(plan.input_order)] for tensor in given]
(outputs,) = run_plan(plan, placed, kernels, Buffers(torch.device("cpu")), apart=False)
print(outputs)

print("\n--- and the oracle: node by node, with no plan ---")
alone = torch.stack(run_one_by_one(merged.graph, given, kernels))
torch.testing.assert_close(outputs, alone)
print("batched and alone agree")

print("\n--- all of it, as users write it ---")
print(fl.batch(model, stack=True)(trees))
