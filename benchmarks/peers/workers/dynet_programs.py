"""DyNet: ``python -m benchmarks.peers.workers.dynet_programs depth``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import dynet_config

from benchmarks.peers.protocol import RATE, Batch, Given, Program, serve
from benchmarks.trees import Tree, from_arrays

STRATEGIES = {"unbatched": 0, "agenda": 1, "depth": 2}

dy: Any
"""The module `dynet`, which reads its settings when it is first imported."""


class DynetProgram(Program):
    """One graph for a batch, an expression for every node."""

    def __init__(self, given: Given) -> None:
        self.weights = dy.ParameterCollection()
        self.trainer = dy.SimpleSGDTrainer(self.weights, RATE)
        # Its default would scale gradients down where they are large; no other peer does.
        self.trainer.set_clip_threshold(-1)

    def loss_of(self, number: int) -> Any:
        raise NotImplementedError

    def loss(self, batch: Batch, *, train: bool) -> float:
        dy.renew_cg()
        total = dy.esum([self.loss_of(number) for number in batch])
        value: float = total.value()
        if train:
            total.backward()
            self.trainer.update()
        return value


class Trees(DynetProgram):
    def __init__(self, given: Given) -> None:
        super().__init__(given)
        weights, own = given.weights, self.weights
        self.hidden = given.sizes["hidden"]
        self.at_every_node = bool(given.sizes["at_every_node"])
        self.embed = own.lookup_parameters_from_numpy(weights["embed.weight"])
        self.leaf, self.merge, self.classify = (
            [own.parameters_from_numpy(weights[f"{name}.{part}"]) for part in ("bias", "weight")]
            for name in ("leaf.gates", "merge.gates", "classify")
        )
        self.trees = from_arrays(given.data)

    def loss_of(self, number: int) -> Any:
        tree = self.trees[number]
        losses: list[Any] = []
        h, _ = self.state(tree, losses)
        return dy.esum(losses) if self.at_every_node else self.judged(h, tree.label)

    def judged(self, h: Any, label: int) -> Any:
        return dy.pickneglogsoftmax(dy.affine_transform([*self.classify, h]), label)

    def state(self, tree: Tree, losses: list[Any]) -> tuple[Any, Any]:
        size = self.hidden
        if tree.left is None:
            gates = dy.affine_transform([*self.leaf, self.embed[tree.word]])
            sigmoids = dy.logistic(dy.pick_range(gates, 0, 2 * size))
            i, o = (dy.pick_range(sigmoids, n * size, (n + 1) * size) for n in range(2))
            c = dy.cmult(i, dy.tanh(dy.pick_range(gates, 2 * size, 3 * size)))
        else:
            (left_h, left_c), (right_h, right_c) = self.state(tree.left, losses), self.state(tree.right, losses)
            gates = dy.affine_transform([*self.merge, dy.concatenate([left_h, right_h])])
            sigmoids = dy.logistic(dy.pick_range(gates, 0, 4 * size))
            i, left, right, o = (dy.pick_range(sigmoids, n * size, (n + 1) * size) for n in range(4))
            c = dy.cmult(i, dy.tanh(dy.pick_range(gates, 4 * size, 5 * size)))
            c = c + dy.cmult(left, left_c) + dy.cmult(right, right_c)
        h = dy.cmult(o, dy.tanh(c))
        if self.at_every_node:
            losses.append(self.judged(h, tree.label))
        return h, c


if __name__ == "__main__":
    dynet_config.set(mem=2048, autobatch=STRATEGIES[sys.argv[1]], random_seed=1)
    dy = importlib.import_module("dynet")

    tasks: dict[str, Callable[[Given], Program]] = {"tree-lstm": Trees}
    serve(tasks)
