"""`fl.export`: a model as one file that runs examples of every shape."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch.export import Dim, ExportedProgram

from foldloom.blocks.compiler.model import Model
from foldloom.errors import ExportError
from foldloom.exporting.model import StaticModel, dynamic_dims, static_model
from foldloom.runtime.description import KEY
from foldloom.runtime.feeds import feeds_of
from foldloom.runtime.recorder import Recorder
from foldloom.tracing.cells.core import Cell
from foldloom.tracing.weights import module_of

_SUFFIXES = (".onnx", ".pt2")
PARTS = 3
"""Of a loop in a file. A Tree-LSTM that merges 4,749 times at batch 256 does so on 21,515 places in one part, on 7,569 in three."""


@runtime_checkable
class Exportable(Protocol):
    """A model that has something else exported than itself: a module whose ``forward`` gives what its loss is made of, say, exports what
    answers."""

    def to_export(self) -> Callable[..., Any]:
        """A compiled block, or a function of one example."""


def export(model: Callable[..., Any], path: str | Path, examples: Sequence[Any] = ()) -> None:
    """Write a model into one file, ``.onnx`` or ``.pt2``, that runs examples of every shape.

    ``model`` is a compiled block, or a module or function of one example that never asks for a computed value. Of the latter, ``examples``
    show what it calls: which cells, with which types and settings, and in which order. The model is exported as it is in evaluation
    mode. A module with a method ``to_export``, as all models of `foldloom.models` have, is exported as what that gives.
    `foldloom.runtime.Model` runs the file, without torch if it is an ``.onnx``.
    """
    export_to(model, [path], examples)


def export_to(
    model: Callable[..., Any], paths: Sequence[str | Path], examples: Sequence[Any] = (), parts: int = PARTS
) -> None:
    """The same as several files: most of the time goes into what they share. Loops of fewer ``parts`` are exported faster, and run slower."""
    for path in paths:
        if Path(path).suffix not in _SUFFIXES:
            raise ExportError(
                f"fl.export writes .onnx and .pt2, and cannot tell which {str(path)!r} is to be: end its name so"
            )
    if isinstance(model, Exportable):
        model = model.to_export()
    with _evaluating(model), torch.no_grad():
        static = static_model(model, examples, parts=parts)
        program = exported_program(static)
        for path in paths:
            if Path(path).suffix == ".onnx":
                _write_onnx(program, static, Path(path))
            else:
                torch.export.save(program, path, extra_files={KEY: static.description.to_json()})
    if isinstance(model, Model) and static.description.program is None:
        warnings.warn(
            f"{paths[0]} runs, but does not say how examples become calls of its cells, so foldloom.runtime cannot be given examples: "
            f"{static.description.why}",
            stacklevel=3,
        )


def exported_program(static: StaticModel) -> ExportedProgram:
    feeds = feeds_of(Recorder(static.description))
    tensors = tuple([torch.from_numpy(feed) for feed in feeds.values()])
    extents = tuple([dict.fromkeys(dims, Dim.DYNAMIC) for dims in dynamic_dims(feeds)])
    try:
        return torch.export.export(static.graph, tensors, dynamic_shapes=(extents,), strict=True)
    except Exception as error:
        raise ExportError(f"the static graph cannot be exported by torch: {_first_line(error)}") from error


def _write_onnx(program: ExportedProgram, static: StaticModel, path: Path) -> None:
    for package in ("onnx", "onnxscript"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ExportError(f"to write {path} {package} is needed: pip install 'foldloom[export]'") from error
    # It imports onnxscript, which those who write .pt2 need not have.
    translations = importlib.import_module("foldloom.exporting.translations").TRANSLATIONS
    names = static.description.input_names()
    outputs = [f"values_{number}" for number in range(len(static.description.types))]
    try:
        with _quiet():
            converted = torch.onnx.export(
                program,
                dynamo=True,
                input_names=names,
                output_names=outputs,
                custom_translation_table=translations,
                verbose=False,
                external_data=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise ExportError(f"{_lacking(error)}. Write it with other operations, or export to .pt2") from error
    assert converted is not None
    _forget_where_it_was_made(converted.model)
    converted.model.metadata_props[KEY] = static.description.to_json()
    converted.save(path)


def _forget_where_it_was_made(model: Any) -> None:
    """Every node says on which line of which file it was made: half of a small file, and nobody's business."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
    for value in model.graph.initializers.values():
        value.metadata_props.clear()


def _lacking(error: BaseException) -> str:
    """Which operation the conversion fails at: the innermost error says it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"ONNX cannot express what the model computes: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


@contextmanager
def _evaluating(model: object) -> Iterator[None]:
    """The model in evaluation mode, and each of its modules as it was afterwards."""
    whole = module_of(model)
    found = [] if whole is None else list(whole.modules())
    # A cell has its module's children, but not the module itself, among its own.
    modules = {*found, *[module.module for module in found if isinstance(module, Cell) and module.module is not None]}
    before = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.training = training


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the converter says of itself: packages that it could use, and its own deprecated calls."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
