"""The Tree-LSTM in blocks: what a training step costs beside one batched by hand, and what recording and planning cost a node."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

import foldloom as fl
from benchmarks.timing import interleaved, median_ratio
from benchmarks.tree_lstm import Systems, add_model_options
from benchmarks.tree_lstm_models import loss_by_hand, plan_by_hand
from benchmarks.trees import Tree
from foldloom.graph.recording import merge_recordings
from foldloom.models import TreeLSTM

BY_HAND = "by hand"
BLOCKS = "blocks"
BLOCKS_AFRESH = "blocks, recording"
BLOCKS_IN_WORKERS = "blocks, planned in workers"
BLOCKS_WITHOUT_PLANNING = "blocks, planned beforehand"


def add_command(commands: Any) -> None:
    parser = commands.add_parser("blocks", description=__doc__, help="the Tree-LSTM in blocks")
    add_model_options(parser)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.set_defaults(run=run)


def as_tuples(tree: Tree) -> Any:
    """A tree as the blocks take it: ``(label, word)`` or ``(label, left, right)``."""
    if tree.left is None:
        return tree.label, tree.word
    return tree.label, as_tuples(tree.left), as_tuples(tree.right)


class BlockSystems(Systems):
    """The systems of the Tree-LSTM benchmark and, with the same weights to begin with, the model in blocks."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        merge, leaf = self.model.merge.function, self.model.leaf.function
        self.blocks = TreeLSTM(leaf.embed.num_embeddings, leaf.embed.embedding_dim, merge.hidden)
        self.blocks.states.cells["Leaf"].load_state_dict(leaf.state_dict())
        self.blocks.states.cells["Merge"].load_state_dict(merge.state_dict())
        self.blocks.classify.load_state_dict(self.model.classify.state_dict())
        self.blocks_optimizer = torch.optim.SGD(self.blocks.parameters(), lr=1e-4)
        self.tuples = [as_tuples(tree) for tree in self.trees]
        self.kept = [self.blocks.record(tree) for tree in self.tuples]
        self.plans = [self.blocks.plan(self.of_round(self.kept, n)) for n in range(len(self.kept) // self.size)]
        self.workers = options.workers

    def blocks_step(self, trees: Any) -> float:
        scores, labels = self.blocks(trees)
        loss = functional.cross_entropy(scores, labels, reduction="sum")
        self.blocks_optimizer.zero_grad()
        loss.backward()
        self.blocks_optimizer.step()
        return loss.item()

    def in_blocks(self, number: int) -> float:
        return self.blocks_step(self.blocks.plan(self.of_round(self.kept, number)))

    def in_blocks_afresh(self, number: int) -> float:
        return self.blocks_step(self.of_round(self.tuples, number))

    def in_blocks_planned(self, number: int) -> float:
        return self.blocks_step(self.plans[number % len(self.plans)])

    @cached_property
    def loader(self) -> DataLoader[fl.Recording]:
        """Plans made by workers from kept recordings, while others run."""
        recordings: Any = self.kept  # a list is all the dataset that a DataLoader needs
        return DataLoader(
            recordings,
            batch_size=self.size,
            collate_fn=self.blocks.plan,
            num_workers=self.workers,
            drop_last=True,
            persistent_workers=True,
        )

    def epoch_in_workers(self, _: int) -> None:
        for plan in self.loader:
            self.blocks_step(plan)

    def epoch_in_the_loop(self, _: int) -> None:
        for number in range(len(self.plans)):
            self.in_blocks(number)

    def epoch_planned(self, _: int) -> None:
        for plan in self.plans:
            self.blocks_step(plan)


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    systems = BlockSystems(options)
    _check_first_losses(systems)
    by_name: dict[str, Callable[[int], Any]] = {
        BY_HAND: systems.by_hand,
        BLOCKS: systems.in_blocks,
        BLOCKS_AFRESH: systems.in_blocks_afresh,
        BLOCKS_WITHOUT_PLANNING: systems.in_blocks_planned,
    }
    seconds = interleaved(by_name, rounds=options.rounds)
    print(f"Tree-LSTM in blocks, batch {options.batch}, hidden {options.hidden}, {options.threads} thread(s)\n")
    print("trees/s")
    for name, times in seconds.items():
        print(f"  {name:<45} {options.batch / statistics.median(times):>10,.0f}")
    print("times as fast")
    print(f"  {'blocks / by hand':<45} {median_ratio(seconds[BY_HAND], seconds[BLOCKS]):>10.2f}")
    print(f"  {'blocks / by hand, nothing kept':<45} {median_ratio(seconds[BY_HAND], seconds[BLOCKS_AFRESH]):>10.2f}")
    if options.workers:
        _compare_epochs(systems, epochs=max(1, options.rounds // 4))
    print("microseconds a tree node")
    for name, cost in costs_per_node(systems, repeats=min(8, options.rounds)).items():
        print(f"  {name:<45} {cost:>10.2f}")


def _compare_epochs(systems: BlockSystems, epochs: int) -> None:
    """Whole epochs: who plans, and what that costs. The workers start in a round that does not count."""
    seconds = interleaved(
        {
            BLOCKS_WITHOUT_PLANNING: systems.epoch_planned,
            BLOCKS: systems.epoch_in_the_loop,
            BLOCKS_IN_WORKERS: systems.epoch_in_workers,
        },
        rounds=epochs,
        warm_up=1,
    )
    print(f"times as fast as {BLOCKS_WITHOUT_PLANNING}, epochs of {len(systems.plans)} steps")
    for name in (BLOCKS, BLOCKS_IN_WORKERS):
        print(f"  {name:<45} {median_ratio(seconds[BLOCKS_WITHOUT_PLANNING], seconds[name]):>10.3f}")


def _check_first_losses(systems: BlockSystems) -> None:
    with torch.no_grad():
        by_hand = loss_by_hand(systems.model, plan_by_hand(systems.of_round(systems.flat, 0))).item()
        scores, labels = systems.blocks(systems.of_round(systems.tuples, 0))
        in_blocks = functional.cross_entropy(scores, labels, reduction="sum").item()
    if abs(in_blocks - by_hand) > 1e-4 * abs(by_hand):
        raise AssertionError(f"blocks start at a loss of {in_blocks}, by hand at {by_hand}: not the same model")


def costs_per_node(systems: BlockSystems, repeats: int) -> dict[str, float]:
    """Recording the first time, merging what was kept, and planning it: the least that each took, because noise only ever adds."""
    spent: dict[str, list[float]] = {}
    for number in range(repeats):
        trees, kept = systems.of_round(systems.tuples, number), systems.of_round(systems.kept, number)
        nodes = sum(recording.graph.node_count for recording in kept)
        parts: dict[str, Callable[[], Any]] = {
            "recording": lambda trees=trees: systems.blocks.states.record_each(trees),  # type: ignore[misc]
            "recording, one tree at a time": lambda trees=trees: [systems.blocks.record(tree) for tree in trees],  # type: ignore[misc]
            "merging kept recordings": lambda kept=kept: merge_recordings(kept),  # type: ignore[misc]
            "merging, scheduling and placing them": lambda kept=kept: systems.blocks.plan(kept),  # type: ignore[misc]
            "on the fly: recording": lambda number=number: [  # type: ignore[misc]
                fl.record(systems.model, tree) for tree in systems.of_round(systems.trees, number)
            ],
        }
        for name, part in parts.items():
            start = time.perf_counter()
            part()
            spent.setdefault(name, []).append(1e6 * (time.perf_counter() - start) / nodes)
    return {name: min(times) for name, times in spent.items()}
