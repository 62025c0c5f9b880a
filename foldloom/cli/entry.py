"""The command ``foldloom``. What runs exported models needs no torch and does not wait for it; all else is in `commands`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from foldloom.cli.failing import Parser, fail, one_line
from foldloom.runtime import predicting
from foldloom.runtime.model import Model


def main(arguments: Sequence[str] | None = None) -> None:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] != ["predict"]:
        _need_torch()
        if given[:1] == ["train"]:
            print("loading torch", file=sys.stderr, flush=True)  # which takes seconds
        from foldloom.cli import commands

        commands.main(given)
        return
    parser = Parser(prog="foldloom")
    predicting.add_command(parser.add_subparsers(required=True, metavar="COMMAND"), _open_run, _open_task)
    with one_line():
        options = parser.parse_args(given)
        options.command(options)


def _open_run(folder: Path, threads: int) -> predicting.Predictor:
    _need_torch()
    from foldloom.training.answering import TrainedModel

    return TrainedModel.of(folder, threads)


def _open_task(model: Model, task: str, path: Path) -> predicting.Predictor | None:
    if importlib.util.find_spec("torch") is None:
        return None
    from foldloom.training.exporting import ExportedTask

    return ExportedTask(model, task, path)


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        fail(
            "without torch there is only `foldloom predict --model FILE`; all else needs `pip install 'foldloom[torch]'`"
        )
