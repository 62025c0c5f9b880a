"""The Tree-LSTM in Foldloom: on the fly, with cells, in blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional as F

import foldloom as fl
from benchmarks.blocks import as_tuples
from benchmarks.peers.protocol import Batch, Given
from benchmarks.peers.workers.foldloom_base import InWorkers, Kept, Recorded
from benchmarks.peers.workers.torch_base import TorchProgram, set_tree_weights
from benchmarks.peers.workers.torch_trees import PlainTrees, tree_model
from benchmarks.tree_lstm_models import TreeLSTM
from benchmarks.trees import from_arrays
from foldloom import models
from foldloom.models.training import last_rows


class TreesOnTheFly(PlainTrees):
    """No cell marked, nothing kept: the plain program as it is."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.batched = fl.batch(self.model, stack=True)

    def batch_loss(self, batch: Batch) -> Tensor:
        losses: Tensor = self.batched([self.phrases[number] for number in batch])
        return losses.sum()


class TreesInCells(Recorded):
    """Leaves and inner nodes are cells; all states are judged at once."""

    model: TreeLSTM

    def __init__(self, given: Given) -> None:
        self.start(tree_model(given), given)
        self.examples = from_arrays(given.data)
        self.batched = fl.batch(self.model, stack=True)

    def record(self, example: Any) -> fl.Recording:
        return fl.record(self.model, example)

    def plan(self, recordings: list[fl.Recording]) -> Any:
        return fl.plan(recordings)

    def run(self, batch: Any) -> Tensor:
        return self.model.batched_loss((self.batched if isinstance(batch, list) else self.batched.run)(batch))


class TreesInCompiledCells(TreesInCells):
    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.batched = fl.batch(self.model.compiled(), stack=True)


class TreesInBlocks(Recorded):
    model: models.TreeLSTM

    def __init__(self, given: Given) -> None:
        sizes = given.sizes
        model = models.TreeLSTM(sizes["words"], sizes["embedding"], sizes["hidden"])
        leaf: Any = model.states.cells["Leaf"]
        merge: Any = model.states.cells["Merge"]
        set_tree_weights(given, embed=leaf.embed, leaf=leaf.gates, merge=merge.gates, classify=model.classify)
        self.start(model, given)
        self.at_every_node = bool(sizes["at_every_node"])
        self.examples = [as_tuples(tree) for tree in from_arrays(given.data)]

    def record(self, example: Any) -> fl.Recording:
        return self.model.record(example)

    def plan(self, recordings: list[fl.Recording]) -> Any:
        return self.model.plan(recordings)

    def run(self, batch: Any) -> Tensor:
        rows = self.model.results(batch)
        if self.at_every_node:
            return self.model.total_loss(rows)
        assert isinstance(rows.labels, Tensor), "labels are numbers"
        scores = self.model.classify(last_rows(rows.values, rows.lengths))
        return F.cross_entropy(scores, last_rows(rows.labels, rows.lengths), reduction="sum")


class TreesInCellsKept(Kept, TreesInCells):
    pass


class TreesInCompiledCellsKept(Kept, TreesInCompiledCells):
    pass


class TreesInBlocksKept(Kept, TreesInBlocks):
    pass


class TreesInCellsInWorkers(InWorkers, TreesInCells):
    pass


class TreesInBlocksInWorkers(InWorkers, TreesInBlocks):
    pass


FOLDLOOM: dict[str, Callable[[Given], TorchProgram]] = {
    "on-the-fly": TreesOnTheFly,
    "cells": TreesInCells,
    "cells-kept": TreesInCellsKept,
    "cells-in-workers": TreesInCellsInWorkers,
    "compiled": TreesInCompiledCells,
    "compiled-kept": TreesInCompiledCellsKept,
    "blocks": TreesInBlocks,
    "blocks-kept": TreesInBlocksKept,
    "blocks-in-workers": TreesInBlocksInWorkers,
}
