"""``foldloom explain`` and ``foldloom profile``: on examples of one's own, of a training, or made up."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from foldloom.cli.failing import Commands, whole
from foldloom.cli.options import add_data, add_settings, add_task, add_threads, settings, tell, use_threads
from foldloom.errors import ArgumentError
from foldloom.models.training import Trainable
from foldloom.planning.schedulers import ByAgenda, ByDepth, OneByOne, Scheduler
from foldloom.tasks import TASKS, Data, Task
from foldloom.training import Run
from foldloom.training.comparing import loss_by
from foldloom.training.run import task_and_data
from foldloom.views.asking import survey_of
from foldloom.views.explaining import explanation_of
from foldloom.views.page import page_of
from foldloom.views.picture import picture_of
from foldloom.views.profiling import profile

SCHEDULERS: dict[str, Callable[[], Scheduler]] = {"by-depth": ByDepth, "by-agenda": ByAgenda, "one-by-one": OneByOne}


def add_explain(commands: Commands) -> None:
    command = commands.add_parser("explain", help="what will be batched, and what cannot be")
    _add_view(command)
    command.set_defaults(command=_explain)


def add_profile(commands: Commands) -> None:
    command = commands.add_parser("profile", help="where the time of a training step goes, and what to change first")
    _add_view(command)
    command.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a time line for chrome://tracing and its like"
    )
    command.set_defaults(command=_profile)


def _add_view(command: argparse.ArgumentParser) -> None:
    add_task(command, nargs="?")
    add_data(command)
    command.add_argument(
        "--run", type=Path, metavar="FOLDER", help="of a training: its task, settings, weights and data"
    )
    command.add_argument("--examples", type=whole(1, 100_000), default=16, metavar="N", help="how many of them (16)")
    add_settings(command)
    add_threads(command)
    command.add_argument(
        "--schedule", choices=SCHEDULERS, default="by-agenda", help="which nodes run together (by-agenda)"
    )
    command.add_argument("--html", type=Path, metavar="FILE", help="write a page to look at")
    command.add_argument("--picture", type=Path, metavar="FILE", help="write the page's picture as SVG")


def _viewed(options: argparse.Namespace) -> tuple[str, Trainable, list[Any], Scheduler]:
    use_threads(options)
    task, model, data = _of_run(options) if options.run is not None else _of_task(options)
    items = data.train[: options.examples]
    return task.name, model, [task.example(item) for item in items], SCHEDULERS[options.schedule]()


def _of_run(options: argparse.Namespace) -> tuple[Task[Any], Trainable, Data[Any]]:
    if options.task is not None or options.set or options.seed is not None:
        raise ArgumentError("a training has its own task and settings: leave out TASK, --set and --seed with --run")
    run = Run.at(options.run, source=options.data)
    return run.task, run.model().train(), run.data


def _of_task(options: argparse.Namespace) -> tuple[Task[Any], Trainable, Data[Any]]:
    """On data that is given, or that is made up and then with a small model."""
    if options.task is None:
        raise ArgumentError(f"expected a task, of {', '.join(TASKS)}, or the folder of a training, --run FOLDER")
    kind, chosen = TASKS[options.task], settings(options, quick=options.data is None)
    torch.manual_seed(chosen.seed)
    if options.data is not None:
        task, data = task_and_data(kind, options.data, chosen, quick=False)
        return task, task.model(), data
    data = kind.made_data(options.examples, chosen)
    task = kind.fitted(data, chosen)
    return task, task.model(), data


def _explain(options: argparse.Namespace) -> None:
    name, model, examples, scheduler = _viewed(options)
    survey = survey_of(model.one_example, [examples], scheduler)
    explanation_of(survey).print()
    if options.html is not None:
        tell(f"wrote {page_of(survey, name).save(options.html)}")
    _save_picture(options, survey)


def _profile(options: argparse.Namespace) -> None:
    name, model, examples, scheduler = _viewed(options)
    loss_by(scheduler, model, examples).backward()  # what happens once in a process is not timed
    with profile() as profiled:
        loss_by(scheduler, model, examples).backward()
    profiled.print()
    if options.html is not None:
        tell(f"wrote {profiled.page(name).save(options.html)}")
    if options.trace is not None:
        tell(f"wrote {profiled.trace(options.trace)}")
    _save_picture(options, profiled.survey)


def _save_picture(options: argparse.Namespace, survey: Any) -> None:
    if options.picture is not None:
        options.picture.write_text(picture_of(survey), encoding="utf-8")
        tell(f"wrote {options.picture}")
