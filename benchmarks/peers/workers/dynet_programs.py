"""DyNet: ``python -m benchmarks.peers.workers.dynet_programs depth``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import dynet_config
import numpy as np

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


class Taggers(DynetProgram):
    """What both taggers share: the LSTMs over words, and the tags."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.given = given
        self.embed = self.weights.lookup_parameters_from_numpy(given.weights["embed.weight"])
        self.rightward, self.leftward = (self.lstm(f"context.{side}") for side in ("rightward", "leftward"))
        self.hide, self.score = (self.affine(f"score.{layer}") for layer in (0, 2))
        self.words, self.tags = given.lists("word"), given.lists("tag")

    def affine(self, name: str) -> list[Any]:
        parts = (self.given.weights[f"{name}.{part}"] for part in ("bias", "weight"))
        return [self.weights.parameters_from_numpy(part) for part in parts]

    def lstm(self, name: str) -> Any:
        from_input, from_state, bias, second_bias = (
            self.given.weights[f"{name}.{part}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        hidden = from_state.shape[1]
        made = dy.CompactVanillaLSTMBuilder(1, from_input.shape[1], hidden, self.weights)
        # It adds 1 to what lets a cell forget.
        bias = bias + second_bias - np.repeat([0, 1, 0, 0], hidden)
        for own, value in zip(made.get_parameters()[0], (from_input, from_state, bias), strict=True):
            i, f, g, o = np.split(value, 4)
            own.set_value(np.concatenate([i, f, o, g]))
        return made

    def vector(self, number: int, position: int) -> Any:
        return self.embed[self.words[number][position]]

    def loss_of(self, number: int) -> Any:
        vectors = [self.vector(number, position) for position in range(len(self.words[number]))]
        from_left = self.rightward.initial_state().transduce(vectors)
        from_right = self.leftward.initial_state().transduce(vectors[::-1])[::-1]
        losses = []
        for left, right, tag in zip(from_left, from_right, self.tags[number], strict=True):
            hidden = dy.tanh(dy.affine_transform([*self.hide, dy.concatenate([left, right])]))
            losses.append(dy.pickneglogsoftmax(dy.affine_transform([*self.score, hidden]), tag))
        return dy.esum(losses)


class CharacterTaggers(Taggers):
    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.embed_character = self.weights.lookup_parameters_from_numpy(given.weights["embed_character.weight"])
        self.spell_rightward, self.spell_leftward = (self.lstm(f"spell_{side}") for side in ("rightward", "leftward"))
        self.spelled = given.spelled()

    def vector(self, number: int, position: int) -> Any:
        if self.words[number][position] >= 0:
            return super().vector(number, position)
        characters = [self.embed_character[character] for character in self.spelled[number][position]]
        from_left = self.spell_rightward.initial_state().transduce(characters)[-1]
        from_right = self.spell_leftward.initial_state().transduce(characters[::-1])[-1]
        return dy.concatenate([from_left, from_right])


if __name__ == "__main__":
    dynet_config.set(mem=2048, autobatch=STRATEGIES[sys.argv[1]], random_seed=1)
    dy = importlib.import_module("dynet")

    tasks: dict[str, Callable[[Given], Program]] = {
        "tree-lstm": Trees,
        "tagger": Taggers,
        "tagger-characters": CharacterTaggers,
    }
    serve(tasks)
