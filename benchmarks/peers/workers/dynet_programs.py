"""DyNet: ``python -m benchmarks.peers.workers.dynet_programs depth``."""

from __future__ import annotations

import importlib.util
import sys
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import dynet_config
import numpy as np

from benchmarks.peers.environments import ROOT
from benchmarks.peers.protocol import RATE, Batch, Given, Program, serve
from benchmarks.trees import Tree, from_arrays

STRATEGIES = {"unbatched": 0, "agenda": 1, "depth": 2}

# By its file, because the package around it asks for torch, which is not here.
_file = ROOT / "foldloom" / "models" / "arc_hybrid.py"
_found = importlib.util.spec_from_file_location("arc_hybrid", _file)
assert _found is not None
assert _found.loader is not None
transitions: Any = importlib.util.module_from_spec(_found)
_found.loader.exec_module(transitions)

dy: Any
"""The module `dynet`, which reads its settings when it is first imported."""


class DynetProgram(Program):
    """One graph for a batch, an expression for every node."""

    def __init__(self, given: Given) -> None:
        self.weights = dy.ParameterCollection()
        self.trainer = dy.SimpleSGDTrainer(self.weights, RATE)
        # Its default would scale gradients down where they are large; no other peer does.
        self.trainer.set_clip_threshold(-1)

    @abstractmethod
    def total(self, batch: Batch) -> Any:
        """The loss of all examples, as an expression."""

    def loss(self, batch: Batch, *, train: bool) -> float:
        dy.renew_cg()
        total = self.total(batch)
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

    def total(self, batch: Batch) -> Any:
        return dy.esum([self.loss_of(number) for number in batch])

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


class OverWords(DynetProgram):
    """What programs over sentences share."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.given = given
        self.embed = self.weights.lookup_parameters_from_numpy(given.weights["embed.weight"])
        self.words = given.lists("word")

    def affine(self, name: str) -> list[Any]:
        parts = (self.given.weights[f"{name}.{part}"] for part in ("bias", "weight"))
        return [self.weights.parameters_from_numpy(part) for part in parts]

    def lstm(self, name: str) -> Any:
        from_input, from_state, bias, second_bias = (
            self.given.weights[f"{name}.{part}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        hidden = from_state.shape[1]
        # The compact one is the faster, but batched by depth it computes other values than unbatched, silently.
        builder = dy.VanillaLSTMBuilder if sys.argv[1] == "depth" else dy.CompactVanillaLSTMBuilder
        made = builder(1, from_input.shape[1], hidden, self.weights)
        # It adds 1 to what lets a cell forget.
        bias = bias + second_bias - np.repeat([0, 1, 0, 0], hidden)
        for own, value in zip(made.get_parameters()[0], (from_input, from_state, bias), strict=True):
            i, f, g, o = np.split(value, 4)
            own.set_value(np.concatenate([i, f, o, g]))
        return made

    def both_directions(self, name: str) -> list[Any]:
        return [self.lstm(f"{name}.{side}") for side in ("rightward", "leftward")]

    def two_layers(self, name: str) -> list[list[Any]]:
        return [self.affine(f"{name}.{layer}") for layer in (0, 2)]

    @staticmethod
    def in_context(lstms: list[Any], vectors: list[Any]) -> list[Any]:
        rightward, leftward = lstms
        from_left = rightward.initial_state().transduce(vectors)
        from_right = leftward.initial_state().transduce(vectors[::-1])[::-1]
        return [dy.concatenate(list(both)) for both in zip(from_left, from_right, strict=True)]

    @staticmethod
    def scored(layers: list[list[Any]], state: Any) -> Any:
        hide, score = layers
        return dy.affine_transform([*score, dy.tanh(dy.affine_transform([*hide, state]))])


class Taggers(OverWords):
    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.context, self.score = self.both_directions("context"), self.two_layers("score")
        self.tags = given.lists("tag")

    def vector(self, number: int, position: int) -> Any:
        return self.embed[self.words[number][position]]

    def total(self, batch: Batch) -> Any:
        return dy.esum([self.loss_of(number) for number in batch])

    def loss_of(self, number: int) -> Any:
        vectors = [self.vector(number, position) for position in range(len(self.words[number]))]
        states = self.in_context(self.context, vectors)
        losses = [
            dy.pickneglogsoftmax(self.scored(self.score, state), tag)
            for state, tag in zip(states, self.tags[number], strict=True)
        ]
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


class Parsers(OverWords):
    """All sentences of a batch go step by step together: the scores that they wait for are asked for at once."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.layers = [self.both_directions(f"context.{layer}") for layer in range(given.sizes["layers"])]
        self.nothing = self.weights.parameters_from_numpy(given.weights["nothing"])
        self.score, self.relate = self.two_layers("score"), self.two_layers("relate")
        self.heads, self.relations = given.lists("head"), given.lists("relation")

    def total(self, batch: Batch) -> Any:
        losses: list[Any] = []
        sentences = [self.Parse(self, number, losses) for number in batch]
        while sentences:
            asked = [sentence.scores() for sentence in sentences]
            values = dy.concatenate(asked).npvalue().reshape(len(asked), -1)
            for sentence, scores in zip(sentences, values, strict=True):
                sentence.decide(scores)
            sentences = [sentence for sentence in sentences if not sentence.at.done]
        return dy.esum(losses)

    class Parse:
        """One sentence on its way."""

        def __init__(self, model: Parsers, number: int, losses: list[Any]) -> None:
            words = [*model.words[number], model.given.sizes["words"]]
            self.states = [model.embed[word] for word in words]
            for layer in model.layers:
                self.states = model.in_context(layer, self.states)
            self.model, self.losses = model, losses
            self.at, self.oracle = transitions.Configuration(len(words) - 1), transitions.Oracle(model.heads[number])
            self.relations = model.relations[number]

        def scores(self) -> Any:
            seen = [self.model.nothing if word is None else self.states[word] for word in self.at.looked_at()]
            self.features = dy.concatenate(seen)
            self.asked = self.model.scored(self.model.score, self.features)
            return self.asked

        def decide(self, scores: np.ndarray) -> None:
            self.losses.append(dy.pickneglogsoftmax(self.asked, self.oracle.best(self.at)))
            legal = self.at.legal()
            attached = self.at.apply(legal[int(scores[legal].argmax())])
            if attached is not None and self.at.heads[attached] == self.oracle.heads[attached]:
                related = self.model.scored(self.model.relate, self.features)
                self.losses.append(dy.pickneglogsoftmax(related, self.relations[attached]))


if __name__ == "__main__":
    dynet_config.set(mem=2048, autobatch=STRATEGIES[sys.argv[1]], random_seed=1)
    dy = importlib.import_module("dynet")

    tasks: dict[str, Callable[[Given], Program]] = {
        "tree-lstm": Trees,
        "tagger": Taggers,
        "tagger-characters": CharacterTaggers,
        "parser": Parsers,
    }
    serve(tasks)
