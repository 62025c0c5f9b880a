"""Options that several commands have."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from foldloom.cli.failing import whole
from foldloom.errors import ArgumentError
from foldloom.tasks import TASKS

THREADS = whole(1, 1024)
SEED = whole(0, 2**32 - 1)


def add_task(command: argparse.ArgumentParser, nargs: str | None = None) -> None:
    names = "; ".join(f"{task.name}: {task.description}" for task in TASKS.values())
    more: dict[str, Any] = {} if nargs is None else {"nargs": nargs}
    command.add_argument("task", choices=TASKS, metavar="TASK", help=names, **more)


def add_data(command: argparse.ArgumentParser) -> None:
    wanted = "; ".join(f"{task.name}: {task.data_wanted}" for task in TASKS.values())
    command.add_argument("--data", type=Path, metavar="PATH", help=wanted)


def add_threads(command: argparse.ArgumentParser) -> None:
    command.add_argument("--threads", type=THREADS, default=1, metavar="N", help="how many of them torch may use (1)")


def add_machine(command: argparse.ArgumentParser) -> None:
    add_threads(command)
    command.add_argument("--device", metavar="NAME", help="cpu, or the accelerator that is found (that one)")


def add_settings(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seed", type=SEED, help="of weights, order and dropout (0)")
    command.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, see foldloom settings TASK"
    )


def add_quick(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--quick", action="store_true", help="a small model on a few examples, made up if there is no --data"
    )


def settings(options: argparse.Namespace, *, quick: bool) -> Any:
    written = dict(_pair(text) for text in options.set)
    if options.seed is not None:
        written["seed"] = str(options.seed)
    return TASKS[options.task].defaults(quick=quick).changed(written)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ArgumentError(f"expected a setting such as epochs=3 after --set, not {text[:60]!r}")
    return name, value


def use_threads(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)


def tell(text: str) -> None:
    """What is being done, beside what is asked for."""
    print(text, file=sys.stderr, flush=True)
