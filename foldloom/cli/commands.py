"""``foldloom train | eval | predict | export | settings | bench | explain | profile | serve``: the command line.

A command is a function that adds itself to the parser and sets ``command``; a task is a class in `foldloom.tasks`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import foldloom
from foldloom.cli.failing import INTERRUPTED, Commands, Parser, one_line, whole
from foldloom.cli.options import (
    add_data,
    add_machine,
    add_quick,
    add_settings,
    add_task,
    settings,
    tell,
    use_threads,
)
from foldloom.cli.serving import add_serve
from foldloom.cli.viewing import add_explain, add_profile
from foldloom.errors import ArgumentError
from foldloom.runtime import predicting
from foldloom.tasks import TASKS
from foldloom.training import Run, train
from foldloom.training.answering import TrainedModel
from foldloom.training.comparing import compare
from foldloom.training.evaluating import PARTS, evaluate
from foldloom.training.exporting import ExportedTask, export_run


def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(prog="foldloom", description="Write a model for one example; run it on a batch of them.")
    parser.add_argument("--version", action="version", version=f"foldloom {foldloom.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (
        _add_train,
        _add_eval,
        _add_predict,
        _add_export,
        _add_settings_command,
        _add_bench,
        add_explain,
        add_profile,
        add_serve,
    ):
        add(commands)
    with one_line():
        options = parser.parse_args(arguments)
        options.command(options)


# --- train


def _add_train(commands: Commands) -> None:
    command = commands.add_parser("train", help="train a task; Ctrl-C stops, --resume goes on")
    add_task(command, nargs="?")
    add_data(command)
    command.add_argument("--folder", type=Path, metavar="FOLDER", help="where to keep all of it (runs/TASK)")
    command.add_argument(
        "--resume", type=Path, metavar="FOLDER", help="go on with an interrupted training, exactly; needs nothing else"
    )
    command.add_argument(
        "--checkpoint-every", type=whole(1), default=100, metavar="STEPS", help="and after each epoch (100)"
    )
    add_settings(command)
    add_quick(command)
    add_machine(command)
    command.set_defaults(command=_train)


def _train(options: argparse.Namespace) -> None:
    use_threads(options)
    run = _new(options) if options.resume is None else _resumed(options)
    resume = options.resume is not None
    finished = train(run, resume=resume, device=options.device, checkpoint_every=options.checkpoint_every)
    if not finished:
        sys.exit(INTERRUPTED)


def _new(options: argparse.Namespace) -> Run:
    if options.task is None:
        raise ArgumentError(f"expected a task, of {', '.join(TASKS)}, or a training to go on with, --resume FOLDER")
    chosen = settings(options, quick=options.quick)
    folder = options.folder or Path("runs") / options.task
    return Run.new(folder, options.task, source=options.data, settings=chosen, quick=options.quick, tell=tell)


def _resumed(options: argparse.Namespace) -> Run:
    if options.folder or options.set or options.quick or options.seed is not None:
        raise ArgumentError("a training goes on with its own settings: leave out --folder, --set, --seed and --quick")
    run = Run.at(options.resume, source=options.data, tell=tell)
    if options.task not in (None, run.task.name):
        raise ArgumentError(f"{options.resume} is a training of {run.task.name}, not of {options.task}")
    return run


# --- eval and predict


def _add_eval(commands: Commands) -> None:
    command = commands.add_parser("eval", help="how good the best model of a training is")
    command.add_argument("--run", type=Path, required=True, metavar="FOLDER", help="of the training")
    add_data(command)
    command.add_argument("--part", choices=PARTS, default="test", help="of the data (test)")
    add_machine(command)
    command.set_defaults(command=_eval)


def _eval(options: argparse.Namespace) -> None:
    use_threads(options)
    run = Run.at(options.run, source=options.data)
    print(json.dumps(evaluate(run, options.part, options.device)))


def _add_predict(commands: Commands) -> None:
    predicting.add_command(commands, TrainedModel.of, ExportedTask)


# --- export


def _add_export(commands: Commands) -> None:
    command = commands.add_parser("export", help="the best model of a training as one .onnx file, for predict --model")
    command.add_argument("--run", type=Path, required=True, metavar="FOLDER", help="of the training")
    add_data(command)
    command.add_argument("file", type=Path, metavar="FILE", help="to write, such as model.onnx")
    command.set_defaults(command=_export)


def _export(options: argparse.Namespace) -> None:
    export_run(Run.at(options.run, source=options.data), options.file)
    tell(f"wrote {options.file}")


# --- settings


def _add_settings_command(commands: Commands) -> None:
    command = commands.add_parser("settings", help="what --set may change of a task, with meanings and ranges")
    add_task(command)
    add_quick(command)
    command.set_defaults(command=_show_settings)


def _show_settings(options: argparse.Namespace) -> None:
    task = TASKS[options.task]
    print(f"{task.name}: {task.description}\n--data: {task.data_wanted}\n--set NAME=VALUE:")
    for name, value, wanted, meaning in task.defaults(quick=options.quick).described():
        print(f"  {name}={value}\n      {wanted}. {meaning}".rstrip())


# --- bench


def _add_bench(commands: Commands) -> None:
    command = commands.add_parser("bench", help="training steps of a task, batched and one by one")
    add_task(command)
    add_data(command)
    command.add_argument("--rounds", type=whole(1), default=7, metavar="N", help="of which the medians are told (7)")
    add_settings(command)
    add_quick(command)
    add_machine(command)
    command.set_defaults(command=_bench)


def _bench(options: argparse.Namespace) -> None:
    use_threads(options)
    chosen = settings(options, quick=options.quick)
    print(compare(TASKS[options.task], options.data, chosen, options.rounds, options.device))
