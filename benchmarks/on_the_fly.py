"""Training steps of the four tasks of the on-the-fly batching paper, and greedy parsing: one by one, by hand, and Foldloom with
and without cells."""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import foldloom as fl
from benchmarks.corpora import DATA
from benchmarks.on_the_fly_models import TASKS, ByHand, ParserInCells, ParserOverSequences, Parsing, Task
from benchmarks.timing import interleaved, machine, median_ratio
from examples.common import Sentence

ONE_BY_ONE = "one by one"
BY_HAND_ALONE = "one by one, nn.LSTM"
BY_HAND = "by hand"
BY_DEPTH = "foldloom by depth"
BY_AGENDA = "foldloom by agenda"
BY_DEPTH_CELLS = "foldloom by depth, cells"
BY_AGENDA_CELLS = "foldloom by agenda, cells"
GREEDY = "greedy-parsing"


def add_command(commands: Any) -> None:
    parser = commands.add_parser("on-the-fly", description=__doc__, help="plain programs batched as they run")
    parser.add_argument("--task", nargs="+", choices=(*TASKS, GREEDY), default=(*TASKS, GREEDY))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--alone", type=int, default=8, help="how many sentences of each batch are run one by one, which takes long"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=DATA,
        help="a folder with wikiner, sst and ud_ewt (default: FOLDLOOM_DATA); where it has none, sentences are made up",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    reports: dict[str, Any] = {"machine": machine()}
    for name in options.task:
        torch.manual_seed(0)
        report = _greedy_parsing(options) if name == GREEDY else _training(name, options)
        reports[name] = report
        if not options.json:
            print(_table(name, report), flush=True)
    if options.json:
        print(json.dumps(reports, indent=2))


# --- training ----------------------------------------------------------------------------------------------------


class Systems:
    """One program and its weights, trained in several ways. A system is a function of the round, which picks the batch."""

    def __init__(self, task: Task, batch: int, alone: int) -> None:
        self.task, self.batch, self.alone = task, batch, min(alone, batch)
        self.optimizer = torch.optim.SGD(task.model.parameters(), lr=1e-4)
        model, with_cells = task.model, task.with_cells()
        self.losses: dict[str, Callable[[list[int]], Tensor]] = {ONE_BY_ONE: self._summed(fl.one_by_one(model))}
        if isinstance(task, ByHand):
            by_hand = task.by_hand
            self.losses[BY_HAND] = by_hand
            if task.over_sequences:
                self.losses[BY_HAND_ALONE] = lambda numbers: torch.stack([by_hand([n]) for n in numbers]).sum()
        for name, program, scheduler in (
            (BY_DEPTH, model, fl.ByDepth()),
            (BY_AGENDA, model, fl.ByAgenda()),
            (BY_DEPTH_CELLS, with_cells, fl.ByDepth()),
            (BY_AGENDA_CELLS, with_cells, fl.ByAgenda()),
        ):
            self.losses[name] = self._summed(fl.batch(program, scheduler=scheduler))

    def _summed(self, run: Callable[..., list[Tensor]]) -> Callable[[list[int]], Tensor]:
        return lambda numbers: torch.stack(run([self.task.examples[number] for number in numbers])).sum()

    def numbers(self, name: str, number: int) -> list[int]:
        """The examples of a round; for systems that are slow a few of them, from the smallest to the largest."""
        start = number % (len(self.task.examples) // self.batch) * self.batch
        numbers = list(range(start, start + self.batch))
        if name not in (ONE_BY_ONE, BY_HAND_ALONE):
            return numbers
        stride = self.batch / self.alone
        by_size = sorted(numbers, key=self.task.size)
        return [by_size[int((position + 0.5) * stride)] for position in range(self.alone)]

    def train(self, name: str, numbers: list[int]) -> float:
        loss = self.losses[name](numbers)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def turn(self, name: str) -> Callable[[int], float]:
        return lambda number: self.train(name, self.numbers(name, number))

    def first_losses(self) -> dict[str, float]:
        """All systems start from the same weights, so their first losses agree."""
        group = self.optimizer.param_groups[0]
        rate, group["lr"] = group["lr"], 0.0
        losses = {name: self.train(name, list(range(self.batch))) for name in self.losses}
        group["lr"] = rate
        for name, loss in losses.items():
            if abs(loss - losses[ONE_BY_ONE]) > 1e-4 * abs(losses[ONE_BY_ONE]):
                raise AssertionError(
                    f"{name} starts at a loss of {loss}, one by one at {losses[ONE_BY_ONE]}: not the same model"
                )
        return losses


def _training(name: str, options: argparse.Namespace) -> dict[str, Any]:
    folder = _folder(options, name)
    task = TASKS[name](folder, 8 * options.batch)
    systems = Systems(task, options.batch, options.alone)
    losses = systems.first_losses()
    seconds = interleaved(
        {system: systems.turn(system) for system in systems.losses},
        rounds=options.rounds,
        progress=not options.json,
    )
    per_sentence = {
        system: [second / len(systems.numbers(system, 0)) for second in times] for system, times in seconds.items()
    }
    baselines = [system for system in (ONE_BY_ONE, BY_HAND_ALONE, BY_HAND) if system in seconds]
    return {
        "task": f"{_data(folder)}; {task.sizes}; batch {options.batch}, {options.threads} thread(s)",
        "first loss": losses,
        "sentences/s": _rates(per_sentence),
        "ratios": _ratios(per_sentence, baselines),
    }


def _rates(per_sentence: dict[str, list[float]]) -> dict[str, float]:
    return {system: 1 / statistics.median(times) for system, times in per_sentence.items()}


def _ratios(per_sentence: dict[str, list[float]], baselines: Sequence[str]) -> dict[str, float]:
    return {
        f"{system} / {baseline}": median_ratio(per_sentence[baseline], times)
        for baseline in baselines
        for system, times in per_sentence.items()
        if system not in baselines
    }


def _folder(options: argparse.Namespace, name: str) -> Path | None:
    needed = {"bilstm": "wikiner", "bilstm-characters": "wikiner", "tree-lstm": "sst"}.get(name, "ud_ewt")
    return options.data if (options.data / needed).is_dir() else None


def _data(folder: Path | None) -> str:
    return "made-up sentences" if folder is None else "real sentences"


# --- greedy parsing ----------------------------------------------------------------------------------------------


class KernelCount(TorchDispatchMode):
    """How many operations reach a kernel: views compute nothing and are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def _greedy_parsing(options: argparse.Namespace) -> dict[str, Any]:
    """Parsing with the parser's own decisions: nothing but `predict`, without gradients."""
    folder = _folder(options, GREEDY)
    task = Parsing.of_paper(folder, 8 * options.batch)
    systems = Systems(task, options.batch, options.alone)
    plain, with_cells, over_sequences = task.model, ParserInCells(task.model), ParserOverSequences(task.model)
    runs: dict[str, Callable[..., Any]] = {
        ONE_BY_ONE: fl.one_by_one(plain.predict),
        BY_HAND_ALONE: fl.one_by_one(over_sequences.predict),
        BY_DEPTH: fl.batch(plain.predict, scheduler=fl.ByDepth()),
        BY_AGENDA: fl.batch(plain.predict, scheduler=fl.ByAgenda()),
        BY_DEPTH_CELLS: fl.batch(with_cells.predict, scheduler=fl.ByDepth()),
        BY_AGENDA_CELLS: fl.batch(with_cells.predict, scheduler=fl.ByAgenda()),
    }

    def turn(system: str) -> Callable[[int], Any]:
        return lambda number: runs[system]([task.examples[n] for n in systems.numbers(system, number)])

    with torch.no_grad():
        few = task.examples[: options.alone]
        parses = {system: parse(few) for system, parse in runs.items()}
        for system, parsed in parses.items():
            if parsed != parses[ONE_BY_ONE]:
                raise AssertionError(f"{system} parses differently from {ONE_BY_ONE}")
        seconds = interleaved(
            {system: turn(system) for system in runs}, rounds=options.rounds, progress=not options.json
        )
        kernels = [
            _kernels(runs[BY_DEPTH], runs[ONE_BY_ONE], task.words, sentences, longest)
            for sentences, longest in _shapes(options.batch)
        ]
    per_sentence = {
        system: [second / len(systems.numbers(system, 0)) for second in times] for system, times in seconds.items()
    }
    return {
        "task": f"{_data(folder)}; {task.sizes}; batch {options.batch}, {options.threads} thread(s); inference",
        "sentences/s": _rates(per_sentence),
        "ratios": _ratios(per_sentence, [ONE_BY_ONE, BY_HAND_ALONE]),
        "kernels": kernels,
    }


def _shapes(batch: int) -> list[tuple[int, int]]:
    """How many sentences, and the longest: first the sum of lengths grows alone, then the longest."""
    return [(batch // 4, 24), (batch // 2, 24), (batch, 24), (batch, 6), (batch, 12), (batch, 48)]


def _kernels(
    batched: Callable[..., Any], one_by_one: Callable[..., Any], words: int, sentences: int, longest: int
) -> dict[str, int]:
    source = random.Random(0)
    lengths = [longest] + [source.randint(2, longest) for _ in range(sentences - 1)]
    examples = [Sentence([source.randrange(words) for _ in range(n)], [-1] * n, [0] * n) for n in lengths]
    # What is done once for every new signature is not part of a batch.
    batched(examples)
    with KernelCount() as together:
        batched(examples)
    with KernelCount() as alone:
        one_by_one(examples)
    return {
        "sentences": sentences,
        "longest": longest,
        "words": sum(lengths),
        "kernels batched": together.count,
        "kernels one by one": alone.count,
    }


def _table(name: str, report: dict[str, Any]) -> str:
    lines = [f"{name}: {report['task']}"]
    for section, digits in (("sentences/s", 1), ("ratios", 2)):
        lines.append(section)
        lines += [f"  {key:<55} {value:>10,.{digits}f}" for key, value in report[section].items()]
    if "kernels" in report:
        rows = report["kernels"]
        lines.append("  ".join(f"{key:>18}" for key in rows[0]))
        lines += ["  ".join(f"{value:>18,}" for value in row.values()) for row in rows]
    return "\n".join(lines) + "\n"
