"""``foldloom serve TARGET``: a training's run folder, an exported file or a function, behind HTTP."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from foldloom.cli.failing import Commands
from foldloom.errors import ArgumentError, DataError
from foldloom.runtime import predicting
from foldloom.runtime.model import Model
from foldloom.training.answering import TrainedModel


def add_serve(commands: Commands) -> None:
    command = commands.add_parser("serve", help="answer requests over HTTP")
    command.add_argument(
        "target",
        help="a training's run folder, a file of foldloom export or fl.export, or module:function, which is called with one example of JSON",
    )
    command.add_argument("--host", default="127.0.0.1", help="to listen at (127.0.0.1)")
    command.add_argument("--port", type=int, default=8000, help="(8000)")
    command.add_argument("--max-live", type=int, default=256, help="examples that run together (256)")
    command.add_argument(
        "--max-waiting", type=int, default=1024, help="requests that may wait; one more gets 429 (1024)"
    )
    command.add_argument("--timeout", type=float, default=2.0, metavar="SECONDS", help="until a request gets 504 (2)")
    command.add_argument(
        "--limit", action="append", default=[], metavar="NAME=N", help="of a request: bytes, nodes, depth or examples"
    )
    command.add_argument("--threads", type=int, default=1, help="for torch (1)")
    command.set_defaults(command=_serve)


def _serve(options: argparse.Namespace) -> None:
    try:
        import uvicorn

        from foldloom.serving.app import RequestLimits, app_of
    except ModuleNotFoundError as error:
        raise ArgumentError(f"foldloom serve needs {error.name}: pip install 'foldloom[serve]'") from error
    limits = RequestLimits(**_limits(options.limit, [field.name for field in fields(RequestLimits)]))
    server, parse = _opened(options)
    app = app_of(server, parse, limits)
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning")


def _limits(given: list[str], names: list[str]) -> dict[str, int]:
    found = {}
    for item in given:
        name, _, number = item.partition("=")
        if name not in names or not number.isdecimal():
            raise ArgumentError(f"--limit {item}: write one of {', '.join(names)}, and a number: --limit bytes=100000")
        found[name] = int(number)
    return found


def _opened(options: argparse.Namespace) -> tuple[Any, Any]:
    """The server of a target, and what makes an example of what was sent."""
    import torch

    from foldloom.serving import Server
    from foldloom.serving.groups import GroupServer

    torch.set_num_threads(options.threads)
    how = {"max_live": options.max_live, "max_waiting": options.max_waiting, "timeout": options.timeout}
    path = Path(options.target)
    if path.is_dir():
        predictor: predicting.Predictor = TrainedModel.of(path, options.threads)
        return GroupServer(predictor, **how), _of_line(predictor)
    if path.is_file():
        model = Model(path)
        return GroupServer(model, **how), lambda given: given
    return Server(_named(options.target), **how), lambda given: given


def _of_line(predictor: predicting.Predictor) -> Any:
    """Examples of a task are lines, in the format of its files."""

    def parse(given: Any) -> Any:
        if not isinstance(given, str):
            raise DataError("an example of this model is a string: a line in the format of its task")
        return predictor.parse(given)

    return parse


def _named(target: str) -> Any:
    module, colon, name = target.partition(":")
    if not colon:
        raise ArgumentError(
            f"{target} is no folder, no file and no module:function: write `foldloom serve runs/sentiment-1`, `model.onnx` or `package.module:function`"
        )
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"{target}: {error}") from error
    return found
