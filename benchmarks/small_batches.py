"""Batches of one to 64 examples, of programs that wait for values and of one that does not: how many times as fast as one by one."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import foldloom as fl
from benchmarks.timing import interleaved, machine, median_ratio
from examples import tree_lstm
from examples.common import made_phrases

ONE_BY_ONE, PLAIN, CELLS = "one by one", "plain", "cells"


class Program(NamedTuple):
    """A model of one example, which returns its loss; the parts of it that are cells; and examples."""

    model: nn.Module
    cells: Sequence[nn.Module]
    examples: Sequence[Any]


def add_command(commands: Any) -> None:
    parser = commands.add_parser("small-batches", description=__doc__, help="small batches, against one by one")
    parser.add_argument("--program", nargs="+", choices=tuple(PROGRAMS), default=tuple(PROGRAMS))
    parser.add_argument("--batch", type=int, nargs="+", default=(1, 4, 16, 64))
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    reports: dict[str, Any] = {"machine": machine()}
    if not options.json:
        print(f"{'times as fast as one by one':<40} {PLAIN:>8} {CELLS:>8}")
    for name in options.program:
        torch.manual_seed(0)
        program = PROGRAMS[name](options.hidden)
        for mode, turn in (("training", _train), ("inference", _infer)):
            for batch in options.batch:
                ratios = _ratios(program, turn, batch, options.rounds, progress=not options.json)
                reports[f"{name}, {mode}, {batch}"] = ratios
                if not options.json:
                    print(f"{f'{name}, {mode}, {batch}':<40} {ratios[PLAIN]:>8.2f} {ratios[CELLS]:>8.2f}", flush=True)
    if options.json:
        print(json.dumps(reports, indent=2))


def _ratios(program: Program, turn: Callable[..., Any], batch: int, rounds: int, *, progress: bool) -> dict[str, float]:
    model = program.model
    ways: dict[str, Callable[..., list[Tensor]]] = {
        ONE_BY_ONE: fl.one_by_one(model),
        PLAIN: fl.batch(model),
        CELLS: fl.batch(model, cells=program.cells),
    }
    batches = [program.examples[start : start + batch] for start in range(0, max(batch, 8), batch)]
    _check_same(ways, batches[0])

    def system(way: Callable[..., list[Tensor]]) -> Callable[[int], None]:
        return lambda _: turn(model, way, batches)

    seconds = interleaved(
        {name: system(way) for name, way in ways.items()}, rounds=rounds, progress=progress, clock=time.process_time
    )
    return {name: median_ratio(seconds[ONE_BY_ONE], seconds[name]) for name in (PLAIN, CELLS)}


def _check_same(ways: dict[str, Callable[..., list[Tensor]]], examples: Sequence[Any]) -> None:
    losses = {name: torch.stack(way(examples)) for name, way in ways.items()}
    for name, loss in losses.items():
        if not torch.allclose(loss, losses[ONE_BY_ONE], rtol=1e-3, atol=1e-4):
            raise AssertionError(f"{name} gives other losses than {ONE_BY_ONE}: not the same model")


def _train(model: nn.Module, way: Callable[..., list[Tensor]], batches: Sequence[Sequence[Any]]) -> None:
    for examples in batches:
        model.zero_grad()
        torch.stack(way(examples)).sum().backward()


def _infer(model: nn.Module, way: Callable[..., list[Tensor]], batches: Sequence[Sequence[Any]]) -> None:
    with torch.no_grad():
        for examples in batches:
            way(examples)


# --- the programs ------------------------------------------------------------------------------------------------


ENOUGH = 5.0
"""How sure is sure enough."""


class Thought(nn.Module):
    """One step of thinking: the next state, and how much of an answer it is."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.next, self.halt = nn.Linear(hidden, hidden), nn.Linear(hidden, 1)
        nn.init.normal_(self.halt.weight, std=0.5)
        nn.init.orthogonal_(self.next.weight, gain=1.5)  # states stay apart, and so do the numbers of steps

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.tanh(self.next(state))
        return state, torch.sigmoid(self.halt(state)).squeeze(-1)


class HaltingNetwork(nn.Module):
    """Thinks until it is sure enough (after Graves, "Adaptive Computation Time for Recurrent Neural Networks", 2016)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.think = Thought(hidden)

    def forward(self, state: Tensor) -> Tensor:
        sure: Any = 0.0
        while sure < ENOUGH:
            state, more = self.think(state)
            sure = sure + more
        return state.square().mean()


class NextWord(nn.Module):
    def __init__(self, words: int, hidden: int) -> None:
        super().__init__()
        self.embed, self.step, self.judge = (
            nn.Embedding(words, hidden),
            nn.GRUCell(hidden, hidden),
            nn.Linear(hidden, words),
        )

    def forward(self, word: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.step(self.embed(word), state)
        return F.log_softmax(self.judge(state), dim=-1), state


class GreedyDecoder(nn.Module):
    """Says the most likely word, again and again, and learns to be surer of it."""

    def __init__(self, hidden: int, words: int = 100) -> None:
        super().__init__()
        self.next_word = NextWord(words, hidden)

    def forward(self, start: tuple[Tensor, int]) -> Tensor:
        state, longest = start
        word, loss = 0, torch.zeros(())
        for _ in range(longest):
            scores, state = self.next_word(torch.tensor(word), state)
            word = int(scores.argmax().item())
            loss = loss - scores[word]
        return loss


class Layer(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.project, self.attend = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.widen, self.narrow = nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, hidden)
        self.before, self.between = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def forward(self, words: Tensor) -> Tensor:
        query, key, value = self.project(self.before(words)).chunk(3, dim=-1)
        attended: Tensor = self.attend(F.scaled_dot_product_attention(query, key, value))
        words = words + attended
        widened: Tensor = self.narrow(torch.relu(self.widen(self.between(words))))
        return words + widened


class EarlyExit(nn.Module):
    """A transformer that stops at the first layer at which it is sure (after Schwartz et al., "The Right Tool for the Job", 2020)."""

    def __init__(self, hidden: int, layers: int = 6, labels: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(hidden) for _ in range(layers)])
        self.judges = nn.ModuleList([nn.Linear(hidden, labels) for _ in range(layers)])

    def forward(self, words: Tensor) -> Tensor:
        for layer, judge in zip(self.layers, self.judges, strict=True):
            words = layer(words)
            scores = F.log_softmax(judge(words.mean(0)), dim=-1)
            if scores.max() > -0.45:
                break
        score: Tensor = scores[0]
        return -score


def _tree_lstm(hidden: int) -> Program:
    model = tree_lstm.TreeLSTM(embedding=hidden, hidden=hidden)
    return Program(model, [model.leaf, model.merge, model.classify], made_phrases(64, 0))


def _halting(hidden: int) -> Program:
    model = HaltingNetwork(hidden)
    return Program(model, [model.think], [torch.randn(hidden) for _ in range(64)])


def _greedy(hidden: int) -> Program:
    model, source = GreedyDecoder(hidden), random.Random(0)
    return Program(model, [model.next_word], [(torch.randn(hidden), source.randint(4, 20)) for _ in range(64)])


def _early_exit(hidden: int) -> Program:
    model, source = EarlyExit(hidden), random.Random(0)
    return Program(model, [], [torch.randn(source.randint(4, 24), hidden) for _ in range(64)])


PROGRAMS: dict[str, Callable[[int], Program]] = {
    "tree-lstm": _tree_lstm,
    "halting": _halting,
    "greedy-decoding": _greedy,
    "early-exit": _early_exit,
}
