"""JAX: ``python -m benchmarks.peers.workers.jax_scan scan 1``.

Leaves at once, then a scan over the levels of all trees, each padded to the widest one, so that all batches have one shape and are
compiled once. Trees were made arrays once; batches of them are laid out as they come.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.peers.protocol import RATE, Batch, Given, Program, serve

# The only way to keep XLA from using every processor that it finds.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-int(sys.argv[2]) :])

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402


class Shape(NamedTuple):
    """What a batch is padded to."""

    leaves: int
    levels: int
    width: int

    @property
    def rows(self) -> int:
        return self.leaves + self.levels * self.width


class Layout(NamedTuple):
    """A batch: rows of leaves, then of each level in turn."""

    words: np.ndarray
    left: np.ndarray
    right: np.ndarray
    labels: np.ndarray
    counts: np.ndarray
    """1 where the loss of a row counts, 0 elsewhere."""


class Trees(Program):
    def __init__(self, given: Given) -> None:
        self.at_every_node = bool(given.sizes["at_every_node"])
        weights = {name: jnp.asarray(value) for name, value in given.weights.items()}
        self.embed = weights.pop("embed.weight")
        self.weights = weights
        data = given.data
        start = np.cumsum(data["size"]) - data["size"]
        self.columns = [np.split(data[name], start[1:]) for name in ("word", "label", "left", "right")]
        self.level = [levels(*children) for children in zip(*self.columns[2:], strict=True)]
        self.shape = Shape(0, 0, 0)

    def expect(self, batches: Sequence[Batch], *, train: bool) -> None:
        self.shape = self.shape_of(batches)

    def shape_of(self, batches: Sequence[Batch]) -> Shape:
        widths = [np.bincount(np.concatenate([self.level[number] for number in batch])) for batch in batches]
        return Shape(
            max(width[0] for width in widths),
            max(len(width) - 1 for width in widths),
            max(width[1:].max(initial=1) for width in widths),
        )

    def layout(self, batch: Batch, shape: Shape) -> Layout:
        word, label, left, right = (np.concatenate([column[n] for n in batch]) for column in self.columns)
        level = np.concatenate([self.level[n] for n in batch])
        sizes = np.array([len(self.level[n]) for n in batch])
        offset = np.repeat(np.cumsum(sizes) - sizes, sizes)
        order = np.argsort(level, kind="stable")
        width = np.bincount(level)
        first = np.concatenate([[0], shape.leaves + shape.width * np.arange(len(width) - 1)])
        row = np.empty(len(level), np.int64)
        row[order] = np.arange(len(level)) - np.repeat(np.cumsum(width) - width, width) + np.repeat(first, width)
        leaf, inner = level == 0, level > 0
        words, children = np.zeros(shape.leaves, np.int32), np.zeros((2, shape.levels * shape.width), np.int32)
        words[row[leaf]] = word[leaf]
        for side, child in zip(children, (left, right), strict=True):
            side[row[inner] - shape.leaves] = row[(child + offset)[inner]]
        left, right = children.reshape(2, shape.levels, shape.width)
        labels, counts = np.zeros(shape.rows, np.int32), np.zeros(shape.rows, np.float32)
        judged = row if self.at_every_node else row[np.cumsum(sizes) - 1]
        labels[row], counts[judged] = label, 1
        return Layout(words, left, right, labels, counts)

    def loss(self, batch: Batch, *, train: bool) -> float:
        layout = self.layout(batch, self.shape if self.shape.leaves else self.shape_of([batch]))
        if not train:
            return float(infer(self.weights, self.embed, layout))
        self.weights, self.embed, loss = step(self.weights, self.embed, layout)
        return float(loss)


def levels(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    level = np.zeros(len(left), np.int64)
    for position in np.flatnonzero(left >= 0).tolist():
        level[position] = 1 + max(level[left[position]], level[right[position]])
    return level


def total_loss(weights: dict[str, Any], vectors: Any, layout: Layout) -> Any:
    hidden = weights["classify.weight"].shape[1]

    def affine(name: str, values: Any) -> Any:
        return values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def shown(o: Any, c: Any) -> Any:
        return jnp.concatenate((o * jnp.tanh(c), c), 1)

    gates = affine("leaf.gates", vectors)
    i, o = jnp.split(jax.nn.sigmoid(gates[:, : 2 * hidden]), 2, 1)
    leaves = shown(o, i * jnp.tanh(gates[:, 2 * hidden :]))
    rows, width = len(layout.labels), layout.left.shape[1]
    states = jnp.zeros((rows, 2 * hidden)).at[: len(leaves)].set(leaves)

    def merge(states: Any, level: Any) -> Any:
        left, right, start = level
        left_h, left_c = jnp.split(states[left], 2, 1)
        right_h, right_c = jnp.split(states[right], 2, 1)
        gates = affine("merge.gates", jnp.concatenate((left_h, right_h), 1))
        i, f, g, o = jnp.split(jax.nn.sigmoid(gates[:, : 4 * hidden]), 4, 1)
        c = i * jnp.tanh(gates[:, 4 * hidden :]) + f * left_c + g * right_c
        return jax.lax.dynamic_update_slice(states, shown(o, c), (start, 0)), None

    starts = len(leaves) + width * jnp.arange(len(layout.left))
    states, _ = jax.lax.scan(merge, states, (layout.left, layout.right, starts))
    scores = jax.nn.log_softmax(affine("classify", states[:, :hidden]))
    return -(jnp.take_along_axis(scores, layout.labels[:, None], 1)[:, 0] * layout.counts).sum()


def training_step(weights: Any, embed: Any, layout: Layout) -> Any:
    # With respect to the vectors of these words, not to the whole table, which would be as large a gradient of zeros.
    loss, (by_weights, by_vectors) = jax.value_and_grad(total_loss, (0, 1))(weights, embed[layout.words], layout)
    weights = jax.tree.map(lambda value, gradient: value - RATE * gradient, weights, by_weights)
    return weights, embed.at[layout.words].add(-RATE * by_vectors), loss


step = jax.jit(training_step, donate_argnums=(0, 1))
infer = jax.jit(lambda weights, embed, layout: total_loss(weights, embed[layout.words], layout))

if __name__ == "__main__":
    serve({"tree-lstm": Trees})
