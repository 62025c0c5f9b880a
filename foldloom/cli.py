"""``foldloom explain TASK``, ``foldloom profile TASK``: the views on the command line.

A command is a function that adds itself to the parser and sets ``run``; a task is a class in `foldloom.tasks`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from foldloom.blocks import Model
from foldloom.runtime import predicting
from foldloom.schedulers import ByAgenda, ByDepth, OneByOne, Scheduler
from foldloom.tasks import TASKS, Task
from foldloom.views.asking import survey_of
from foldloom.views.explaining import explanation_of
from foldloom.views.page import page_of
from foldloom.views.picture import picture_of
from foldloom.views.profiling import profile

SCHEDULERS: dict[str, Callable[[], Scheduler]] = {"by-depth": ByDepth, "by-agenda": ByAgenda, "one-by-one": OneByOne}

Commands = Any
"""What argparse returns from ``add_subparsers``; it has no public name."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="foldloom", description="Write a model for one example; run it on a batch of them."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_explain, _add_profile, predicting.add_command):
        add(commands)
    options = parser.parse_args(arguments)
    options.run(options)


def _add_explain(commands: Commands) -> None:
    command = commands.add_parser("explain", help="what will be batched, and what cannot be")
    _add_task(command)
    command.set_defaults(run=_explain)


def _add_profile(commands: Commands) -> None:
    command = commands.add_parser("profile", help="where the time of a training step goes, and what to change first")
    _add_task(command)
    command.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a time line for chrome://tracing and its like"
    )
    command.set_defaults(run=_profile)


def _add_task(command: argparse.ArgumentParser) -> None:
    names = "; ".join(f"{task.name}: {task.description}" for task in TASKS.values())
    command.add_argument("task", choices=TASKS, metavar="TASK", help=names)
    command.add_argument("--examples", type=int, default=16, metavar="N", help="how many examples to make up (16)")
    command.add_argument("--seed", type=int, default=0, help="which ones")
    command.add_argument(
        "--schedule", choices=SCHEDULERS, default="by-depth", help="which nodes run together (by-depth)"
    )
    command.add_argument("--html", type=Path, metavar="FILE", help="write a page to look at")
    command.add_argument("--picture", type=Path, metavar="FILE", help="write the page's picture as SVG")


def _prepared(options: argparse.Namespace) -> tuple[Task, torch.nn.Module, Sequence[Any], Scheduler]:
    torch.manual_seed(options.seed)
    task, scheduler = TASKS[options.task], SCHEDULERS[options.schedule]()
    model = task.model()
    if isinstance(model, Model):
        # A block is compiled for a scheduler.
        model = Model(model.root, scheduler=scheduler)
    return task, model, task.made_examples(options.examples, options.seed), scheduler


def _explain(options: argparse.Namespace) -> None:
    task, model, examples, scheduler = _prepared(options)
    survey = survey_of(model, [examples], None if isinstance(model, Model) else scheduler)
    explanation_of(survey).print()
    if options.html is not None:
        _tell(page_of(survey, task.name).save(options.html))
    if options.picture is not None:
        options.picture.write_text(picture_of(survey), encoding="utf-8")
        _tell(options.picture)


def _profile(options: argparse.Namespace) -> None:
    task, model, examples, scheduler = _prepared(options)
    task.loss(model, examples, scheduler).backward()  # what happens once in a process is not timed
    with profile() as profiled:
        task.loss(model, examples, scheduler).backward()
    profiled.print()
    if options.html is not None:
        _tell(profiled.page(task.name).save(options.html))
    if options.trace is not None:
        _tell(profiled.trace(options.trace))
    if options.picture is not None:
        options.picture.write_text(picture_of(profiled.survey), encoding="utf-8")
        _tell(options.picture)


def _tell(path: Path) -> None:
    print(f"wrote {path}", file=sys.stderr)
