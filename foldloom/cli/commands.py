"""``foldloom train | eval | predict | bench | explain | profile``: the command line.

A command is a function that adds itself to the parser and sets ``command``; a task is a class in `foldloom.tasks`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from foldloom.errors import ArgumentError, DataError, RunError
from foldloom.models.training import Trainable
from foldloom.planning.schedulers import ByAgenda, ByDepth, OneByOne, Scheduler
from foldloom.runtime import predicting
from foldloom.tasks import TASKS
from foldloom.training import Run, train
from foldloom.training.answering import TrainedModel
from foldloom.training.comparing import compare, loss_by
from foldloom.training.evaluating import PARTS, evaluate
from foldloom.views.asking import survey_of
from foldloom.views.explaining import explanation_of
from foldloom.views.page import page_of
from foldloom.views.picture import picture_of
from foldloom.views.profiling import profile

SCHEDULERS: dict[str, Callable[[], Scheduler]] = {"by-depth": ByDepth, "by-agenda": ByAgenda, "one-by-one": OneByOne}

INTERRUPTED = 130
"""What a shell says of a program that Ctrl-C ended."""

Commands = Any
"""What argparse returns from ``add_subparsers``; it has no public name."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="foldloom", description="Write a model for one example; run it on a batch of them."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_train, _add_eval, _add_predict, _add_bench, _add_explain, _add_profile):
        add(commands)
    options = parser.parse_args(arguments)
    try:
        options.command(options)
    except (ArgumentError, DataError, RunError, FileNotFoundError, ModuleNotFoundError) as error:
        sys.exit(f"foldloom: {error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


# --- what several commands have


def _add_task(command: argparse.ArgumentParser) -> None:
    names = "; ".join(f"{task.name}: {task.description}" for task in TASKS.values())
    command.add_argument("task", choices=TASKS, metavar="TASK", help=names)


def _add_data(command: argparse.ArgumentParser) -> None:
    wanted = "; ".join(f"{task.name}: {task.data_wanted}" for task in TASKS.values())
    command.add_argument("--data", type=Path, metavar="PATH", help=wanted)


def _add_machine(command: argparse.ArgumentParser) -> None:
    command.add_argument("--threads", type=int, default=1, metavar="N", help="how many of them torch may use (1)")
    command.add_argument("--device", metavar="NAME", help="cpu, or the accelerator that is found (that one)")


def _add_settings(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seed", type=int, help="of weights, order and dropout (0)")
    command.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the task, see docs/training.md"
    )
    command.add_argument(
        "--quick", action="store_true", help="a small model on a few examples, made up if there is no --data"
    )


def _settings(options: argparse.Namespace) -> Any:
    written = dict(_pair(text) for text in options.set)
    if options.seed is not None:
        written["seed"] = str(options.seed)
    return TASKS[options.task].defaults(quick=options.quick).changed(written)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ArgumentError(f"expected a setting such as epochs=3 after --set, not {text!r}")
    return name, value


def _use_threads(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)


def _tell(path: Path) -> None:
    print(f"wrote {path}", file=sys.stderr)


# --- train


def _add_train(commands: Commands) -> None:
    command = commands.add_parser("train", help="train a task; Ctrl-C stops, --resume goes on")
    _add_task(command)
    _add_data(command)
    command.add_argument("--folder", type=Path, metavar="FOLDER", help="where to keep all of it (runs/TASK)")
    command.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with an interrupted training, exactly")
    command.add_argument(
        "--checkpoint-every", type=int, default=100, metavar="STEPS", help="and after each epoch (100)"
    )
    _add_settings(command)
    _add_machine(command)
    command.set_defaults(command=_train)


def _train(options: argparse.Namespace) -> None:
    _use_threads(options)
    if options.resume is None:
        folder = options.folder or Path("runs") / options.task
        run = Run.new(folder, options.task, source=options.data, settings=_settings(options), quick=options.quick)
    else:
        run = _resumed(options)
    resume = options.resume is not None
    finished = train(run, resume=resume, device=options.device, checkpoint_every=options.checkpoint_every)
    if not finished:
        sys.exit(INTERRUPTED)


def _resumed(options: argparse.Namespace) -> Run:
    if options.folder or options.set or options.quick or options.seed is not None:
        raise ArgumentError("a training goes on with its own settings: leave out --folder, --set, --seed and --quick")
    run = Run.at(options.resume, source=options.data)
    if run.task.name != options.task:
        raise ArgumentError(f"{options.resume} is a training of {run.task.name}, not of {options.task}")
    return run


# --- eval and predict


def _add_eval(commands: Commands) -> None:
    command = commands.add_parser("eval", help="how good the best model of a training is")
    command.add_argument("--run", type=Path, required=True, metavar="FOLDER", help="of the training")
    _add_data(command)
    command.add_argument("--part", choices=PARTS, default="test", help="of the data (test)")
    _add_machine(command)
    command.set_defaults(command=_eval)


def _eval(options: argparse.Namespace) -> None:
    _use_threads(options)
    run = Run.at(options.run, source=options.data)
    print(json.dumps(evaluate(run, options.part, options.device)))


def _add_predict(commands: Commands) -> None:
    predicting.add_command(commands, TrainedModel.of)


# --- bench


def _add_bench(commands: Commands) -> None:
    command = commands.add_parser("bench", help="training steps of a task, batched and one by one")
    _add_task(command)
    _add_data(command)
    command.add_argument("--rounds", type=int, default=7, metavar="N", help="of which the medians are told (7)")
    _add_settings(command)
    _add_machine(command)
    command.set_defaults(command=_bench)


def _bench(options: argparse.Namespace) -> None:
    _use_threads(options)
    print(compare(TASKS[options.task], options.data, _settings(options), options.rounds, options.device))


# --- explain and profile: on examples that are made up


def _add_explain(commands: Commands) -> None:
    command = commands.add_parser("explain", help="what will be batched, and what cannot be")
    _add_view(command)
    command.set_defaults(command=_explain)


def _add_profile(commands: Commands) -> None:
    command = commands.add_parser("profile", help="where the time of a training step goes, and what to change first")
    _add_view(command)
    command.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a time line for chrome://tracing and its like"
    )
    command.set_defaults(command=_profile)


def _add_view(command: argparse.ArgumentParser) -> None:
    _add_task(command)
    command.add_argument("--examples", type=int, default=16, metavar="N", help="how many examples to make up (16)")
    command.add_argument("--seed", type=int, default=0, help="which ones")
    command.add_argument(
        "--schedule", choices=SCHEDULERS, default="by-agenda", help="which nodes run together (by-agenda)"
    )
    command.add_argument("--html", type=Path, metavar="FILE", help="write a page to look at")
    command.add_argument("--picture", type=Path, metavar="FILE", help="write the page's picture as SVG")


def _viewed(options: argparse.Namespace) -> tuple[Trainable, list[Any], Scheduler]:
    torch.manual_seed(options.seed)
    kind = TASKS[options.task]
    settings = kind.defaults(quick=True)
    data = kind.made_data(options.examples, settings.changed({"seed": str(options.seed)}))
    task = kind.fitted(data, settings)
    return task.model(), [task.example(item) for item in data.train], SCHEDULERS[options.schedule]()


def _explain(options: argparse.Namespace) -> None:
    model, examples, scheduler = _viewed(options)
    survey = survey_of(model.one_example, [examples], scheduler)
    explanation_of(survey).print()
    if options.html is not None:
        _tell(page_of(survey, options.task).save(options.html))
    if options.picture is not None:
        options.picture.write_text(picture_of(survey), encoding="utf-8")
        _tell(options.picture)


def _profile(options: argparse.Namespace) -> None:
    model, examples, scheduler = _viewed(options)
    loss_by(scheduler, model, examples).backward()  # what happens once in a process is not timed
    with profile() as profiled:
        loss_by(scheduler, model, examples).backward()
    profiled.print()
    if options.html is not None:
        _tell(profiled.page(options.task).save(options.html))
    if options.trace is not None:
        _tell(profiled.trace(options.trace))
    if options.picture is not None:
        options.picture.write_text(picture_of(profiled.survey), encoding="utf-8")
        _tell(options.picture)
