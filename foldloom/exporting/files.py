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
from foldloom.runtime.description import KEY, TASK
from foldloom.runtime.feeds import feeds_of
from foldloom.runtime.recorder import Recorder
from foldloom.tracing.cells.core import Cell
from foldloom.tracing.weights import module_of

_SUFFIXES = (".onnx", ".pt2")
PARTS = 3
"""Into how many parts a loop is split. With one part, the 4,749 merges of a Tree-LSTM at batch 256 are padded to 21,515; with three, to
7,569."""


@runtime_checkable
class Exportable(Protocol):
    """A model that exports something else than its ``forward``: if ``forward`` computes a loss, say, it exports what
    predicts."""

    def to_export(self) -> Callable[..., Any]:
        """What to export: a compiled block, or a function of one example."""


def export(model: Callable[..., Any], path: str | Path, examples: Sequence[Any] = ()) -> None:
    """Write a model to a file, ``.onnx`` or ``.pt2``, that runs examples of every shape.

    ``model`` is a compiled block, or a module or function of one example that never needs a computed value. For code,
    ``examples`` must show what it calls: which cells, with which types and settings, and in which order. Models are
    exported in evaluation mode. A module with a method ``to_export``, like all models of `foldloom.models`, is exported
    as what that returns. `foldloom.runtime.Model` runs the file; an ``.onnx`` needs no torch.

    >>> import tempfile, foldloom as fl
    >>> from foldloom import blocks as fb
    >>> model = fb.compile(fb.Map(fb.Scalar()) >> fb.Sum())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fl.export(model, f"{folder}/model.pt2")
    """
    export_to(model, [path], examples)


def export_to(
    model: Callable[..., Any],
    paths: Sequence[str | Path],
    examples: Sequence[Any] = (),
    parts: int = PARTS,
    *,
    task: str | None = None,
) -> None:
    """`export` to several files, which share most of the work. Loops in fewer ``parts`` export faster and run
    slower. ``task`` is what a training says of itself, as JSON."""
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
                _write_onnx(program, static, Path(path), task)
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


def _write_onnx(program: ExportedProgram, static: StaticModel, path: Path, task: str | None) -> None:
    for package in ("onnx", "onnxscript"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ExportError(f"to write {path} {package} is needed: pip install 'foldloom[export]'") from error
    # Imported here because it imports onnxscript, which .pt2 does not need.
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
        raise ExportError(
            f"{_unsupported_operation(error)}. Write it with other operations, or export to .pt2"
        ) from error
    assert converted is not None
    _strip_source_locations(converted.model)
    converted.model.metadata_props[KEY] = static.description.to_json()
    if task is not None:
        converted.model.metadata_props[TASK] = task
    converted.save(path)


def _strip_source_locations(model: Any) -> None:
    """Remove the source locations of nodes, which are half of a small file."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
    for value in model.graph.initializers.values():
        value.metadata_props.clear()


def _unsupported_operation(error: BaseException) -> str:
    """The operation that the conversion failed at, from the innermost error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"ONNX cannot express what the model computes: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


@contextmanager
def _evaluating(model: object) -> Iterator[None]:
    """Evaluation mode inside; every module gets its own mode back."""
    whole = module_of(model)
    found = [] if whole is None else list(whole.modules())
    # The submodules of a cell are its module's children, without the module itself.
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
    """Silences the log messages and deprecation warnings of the ONNX converter."""
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
