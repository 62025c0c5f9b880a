"""Four small programs through the rooms of Foldloom: a cell, a branch on a computed value, blocks, and export.

Run it, and read it beside "Four walks" in design.md: each section prints what a room makes. The tests run this file.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import foldloom as fl
from foldloom import blocks as fb
from foldloom.blocks.compiler.traversal import all_blocks
from foldloom.execution import Buffers, run_one_by_one, run_plan
from foldloom.execution.engine import column_to_tensor
from foldloom.graph.recording import merge_recordings
from foldloom.planning.cse import shared
from foldloom.planning.placement import place
from foldloom.runtime import Model as ExportedModel
from foldloom.tracing.flushing.kernels import kernels_of
from foldloom.tracing.weights import Weights

torch.manual_seed(0)


def title(text: str) -> None:
    print(f"\n--- {text} ---")


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

title("1. A cell. tracing: the calls of each example, recorded as columns")
recordings = [fl.record(model, tree) for tree in trees]
first = recordings[0]
print(first)
print("op of each node     ", first.graph.op_of_node)
print("operands, as values ", first.graph.operands)
print("depth of each node  ", first.graph.depth_of_node)
print("inputs that came in ", first.inputs)

title("graph: a minibatch is a concatenation with offsets")
batch = merge_recordings(recordings)
print(batch.graph)

title("planning: equal nodes are merged (word 1 is in both trees)")
batch, merged_ops = shared(batch)
print(batch.graph, "merged ops:", [batch.graph.ops[number].label for number in merged_ops])

title("planning: the step of each node (-1 is an input)")
for scheduler in (fl.ByDepth(), fl.ByAgenda(), fl.OneByOne()):
    print(f"{scheduler!r:<12} {scheduler.schedule(batch.graph)}")

title("planning: where each value lives, and the plan")
plan = place(batch.graph, fl.ByDepth().schedule(batch.graph))
plan.check()
print(plan)

title("execution: the steps of the plan, over arenas")
cpu = torch.device("cpu")
kernels = kernels_of(batch.graph.ops, model, Weights(model))
input_ops = [op for op in batch.graph.ops if op.is_input]
given = [column_to_tensor(op, column, cpu) for op, column in zip(input_ops, batch.inputs, strict=True)]
placed = [tensor[torch.from_numpy(plan.input_order)] for tensor in given]
(outputs,) = run_plan(plan, placed, kernels, Buffers(cpu), apart=False)
print(outputs)

title("execution: the oracle, node by node without a plan")
print(alone := torch.stack(run_one_by_one(batch.graph, given, kernels)))
torch.testing.assert_close(outputs, alone)

halve = nn.Linear(2, 2, bias=False)


def until_small(x: Any) -> Any:
    rounds = 0
    while x.norm() > 0.1:  # the value is demanded: this example waits, the others go on
        x, rounds = 0.5 * torch.tanh(halve(x)), rounds + 1
    return x, rounds


title(
    "2. A branch. tracing: a flush computes what the waiting examples demand; execution: all flushes share their arenas"
)
vectors = [torch.full((2,), 10.0**n) for n in range(-1, 2)]
with fl.profile() as profile:
    small = fl.batch(until_small)(vectors)
for number, flush in enumerate(profile.runs):
    steps = [f"{step.size} x {flush.plan.ops[step.op].label}" for step in flush.plan.steps]
    print(f"flush {number}:", ", ".join(steps) or "nothing is pending at the end, results are handed out")
print("rounds of each example:", [rounds for _, rounds in small])
assert [rounds for _, rounds in small] == [rounds for _, rounds in fl.one_by_one(until_small)(vectors)]

title("3. Blocks. blocks: types are inferred while blocks are combined")
tree_sum = fb.ForwardDeclaration()
merge = fb.Record((tree_sum(), tree_sum())) >> fb.Function(torch.add)
root = fb.OneOf(lambda tree: isinstance(tree, tuple), {True: merge, False: fb.Scalar()})
tree_sum.resolve_to(root)
for block in all_blocks(root):
    print(f"{block!r:.60}: {block.takes} -> {block.gives}")

title("blocks: a model, whose program calls cells; then the first walk")
totals = fb.compile(root)
print(list(totals.cells), totals.record(trees[0]))
print(totals(trees))

title(
    "blocks: what only passes values on becomes a line of generated Python; a sequence runs with its interpreter, as in a file"
)
forests = fb.compile(fb.Map(root) >> fb.Sum())
print(forests([trees, trees[:1]]))

title("4. Export. exporting: each block describes itself, each op is in the graph once")
static = fl.static_model(totals)
for described in static.description.program["blocks"]:
    print(described)
for stage in static.description.stages:
    print("loop" if stage.loop else "once", [static.description.ops[op].label for op in stage.ops])

title("exporting writes a file; runtime: examples become arrays of row numbers, the inputs of the file")
with tempfile.TemporaryDirectory() as folder:
    fl.export(totals, path := Path(folder) / "totals.pt2")
    exported = ExportedModel(path)
    for name, feed in exported.batch(trees).feeds.items():
        print(f"{name:<12} {feed.tolist()}")
    answers = exported(trees)
print(answers)

title("all of it, as users write it")
torch.testing.assert_close(fl.batch(model, stack=True)(trees), fl.one_by_one(model, stack=True)(trees))
torch.testing.assert_close(totals(trees), torch.tensor([float(answer) for answer in answers]))
print("batched and alone agree")
