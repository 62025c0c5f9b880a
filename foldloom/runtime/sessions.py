"""Backends that run an exported file: ONNX Runtime, or torch."""

from __future__ import annotations

import importlib
import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foldloom.data.opening import read_regular
from foldloom.errors import ExportedFileError
from foldloom.runtime.archives import looked_at
from foldloom.runtime.description import KEY, TASK, Array, Description
from foldloom.runtime.graphs import GraphError, TooManyNodes, check_graph
from foldloom.runtime.limits import Limits, too_much

MOST_BYTES = 1 << 31
"""The largest file: that of ONNX."""

_TYPES = {
    "tensor(bool)": "bool", "tensor(int8)": "int8", "tensor(int16)": "int16", "tensor(int32)": "int32", "tensor(int64)": "int64",
    "tensor(uint8)": "uint8", "tensor(uint16)": "uint16", "tensor(uint32)": "uint32", "tensor(uint64)": "uint64",
    "tensor(float16)": "float16", "tensor(float)": "float32", "tensor(double)": "float64",
    "tensor(complex64)": "complex64", "tensor(complex128)": "complex128",
}  # fmt: skip
"""The dtypes of ONNX Runtime, by their names."""


class Session(ABC):
    """A loaded file."""

    description: Description
    task: str | None = None
    """What `foldloom export` adds: the task of a training, as JSON."""

    @abstractmethod
    def run(self, feeds: Mapping[str, Array], calls: int) -> Sequence[Array]:
        """The outputs of each type, for a batch of so many calls of cells."""


def session_of(path: str | Path, threads: int | None, limits: Limits, *, trusted: bool) -> Session:
    place = Path(path)
    if not place.is_file():
        what = "is a folder" if place.is_dir() else "does not exist"
        raise ExportedFileError(
            f"there is no file {path}: it {what}. Write it with `fl.export(model, {str(path)!r}, examples)`"
        )
    if place.suffix == ".pt2":
        return TorchSession(str(path), threads, limits, trusted=trusted)
    return OnnxSession(str(path), threads, limits)


class OnnxSession(Session):
    """The graph is given to ONNX Runtime as bytes: by its path it would look for further files, wherever the graph says."""

    def __init__(self, path: str, threads: int | None, limits: Limits) -> None:
        runtime = _imported("onnxruntime", "pip install 'foldloom[runtime]'")
        self._path, self._limits, self._runtime = path, limits, runtime
        content = _bytes_of(path)
        try:
            check_graph(content, limits.nodes)
        except TooManyNodes as error:
            raise too_much("nodes", limits.nodes, f"{path} cannot be run: {error}") from error
        except GraphError as error:
            raise ExportedFileError(f"{path} is no file that fl.export writes: {error}") from error
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry("session.load_model_format", "ONNX")  # the only one that was looked at
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self._session = _limited_session(runtime, content, options, limits.memory + 2 * len(content))
            metadata = self._session.get_modelmeta().custom_metadata_map
            self._inputs = [(given.name, given.type, given.shape) for given in self._session.get_inputs()]
            self._outputs = [(made.name, made.type, made.shape) for made in self._session.get_outputs()]
        except Exception as error:  # names that are no text, too
            raise ExportedFileError(f"{path} is no file that ONNX Runtime can run: {_line(error)}") from error
        if KEY not in metadata:
            raise ExportedFileError(
                f"{path} is an ONNX file, but not one that `fl.export` wrote: it does not say which cells it has"
            )
        self.description = Description.from_json(metadata[KEY], path)
        self.task = metadata.get(TASK)
        _check_values(self.description, limits, path)
        self._check_inputs()

    def _check_inputs(self) -> None:
        """The graph takes and gives what the description says."""
        described = self.description
        if [name for name, _, _ in self._inputs] != described.input_names():
            raise ExportedFileError(f"{self._path} has a graph that takes other inputs than its description says")
        if len(self._outputs) != len(described.types):
            raise ExportedFileError(f"{self._path} has a graph that gives other outputs than its description says")
        for type, given, made in zip(described.types, self._inputs, self._outputs, strict=False):
            for name, kind, shape in (given, made):
                extents = [size for size in shape[1:] if isinstance(size, int)]
                fits = len(extents) != len(type.shape) or extents == list(type.shape)
                if _TYPES.get(kind) != type.dtype or len(shape) != len(type.shape) + 1 or not fits:
                    raise ExportedFileError(
                        f"{self._path} has a graph in which {name:.60} is {kind}{shape}, where its description says {type}"
                    )

    def run(self, feeds: Mapping[str, Array], calls: int) -> Sequence[Array]:
        seconds = self._limits.seconds or 4 + 0.05 * calls
        options = self._runtime.RunOptions()
        options.log_severity_level = 4
        timer = threading.Timer(seconds, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            outputs: Sequence[Array] = self._session.run(None, dict(feeds), options)
        except Exception as error:
            if options.terminate:
                raise too_much(
                    "seconds", seconds, f"the graph of {self._path} ran for more than {{:.3g}} seconds"
                ) from error
            if "bfc_arena" in str(error) or isinstance(error, MemoryError):
                raise too_much(
                    "memory",
                    self._limits.memory,
                    f"the graph of {self._path} takes more than {{:,}} bytes beyond its weights",
                ) from error
            raise ExportedFileError(f"the graph of {self._path} cannot run this batch: {_line(error)}") from error
        finally:
            timer.cancel()
        self._check_outputs(outputs, feeds)
        return outputs

    def _check_outputs(self, outputs: Sequence[Array], feeds: Mapping[str, Array]) -> None:
        for number, (type, found) in enumerate(zip(self.description.types, outputs, strict=True)):
            if not isinstance(found, np.ndarray) or found.shape != (len(feeds[f"output_{number}"]), *type.shape):
                raise ExportedFileError(f"the graph of {self._path} gives other values than it was asked for")


_registering = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_registering._at_fork_reinit)  # type: ignore[attr-defined]


def _limited_session(runtime: Any, content: bytes, options: Any, most: int) -> Any:
    """A session whose values have an arena of their own that grows no larger than this.

    ONNX Runtime takes the arena that was registered last. Constants are not folded: that is done without an arena, and a few bytes of a
    graph are gigabytes of a constant.
    """
    place = runtime.OrtMemoryInfo("Cpu", runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, runtime.OrtMemType.DEFAULT)
    # Grows by what is asked for, and as it likes in all else.
    arena = {
        "max_mem": most,
        "arena_extend_strategy": 1,
        "initial_chunk_size_bytes": -1,
        "max_dead_bytes_per_chunk": -1,
    }
    options.add_session_config_entry("session.use_env_allocators", "1")
    with _registering:
        runtime.create_and_register_allocator(place, runtime.OrtArenaCfg(arena))
        return runtime.InferenceSession(
            content,
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["ConstantFolding"],
            enable_fallback=0,
        )


class TorchSession(Session):
    def __init__(self, path: str, threads: int | None, limits: Limits, *, trusted: bool) -> None:
        description, loaded = looked_at(path, KEY, trusted=trusted)
        self.description = Description.from_json(description, path)
        _check_values(self.description, limits, path)
        self._torch = _imported("torch", "pip install 'foldloom[torch]'")
        if threads is not None:
            self._torch.set_num_threads(threads)
        self._path = path
        try:
            program = self._torch.export.load(loaded)
        except Exception as error:  # whatever torch makes of a damaged file
            raise ExportedFileError(f"{path} is no file that torch.export can load: {_line(error)}") from error
        self._module = program.module()

    def run(self, feeds: Mapping[str, Array], calls: int) -> Sequence[Array]:
        try:
            with self._torch.no_grad():
                outputs = self._module(*[self._torch.from_numpy(feed) for feed in feeds.values()])
            return [output.numpy() for output in outputs]
        except Exception as error:
            raise ExportedFileError(f"the graph of {self._path} cannot run this batch: {_line(error)}") from error


def _check_values(description: Description, limits: Limits, path: str) -> None:
    """Every arena has at least two rows, which are made before anything else is known."""
    size = sum([2 * math.prod(type.shape) * np.dtype(type.dtype).itemsize for type in description.types])
    if size > limits.memory:
        raise too_much("memory", limits.memory, f"the values of {path} would take more than {{:,}} bytes")


def _bytes_of(path: str) -> bytes:
    try:
        if Path(path).stat().st_size > MOST_BYTES:
            raise ExportedFileError(f"{path} is larger than a file of ONNX can be, {MOST_BYTES:,} bytes")
        return read_regular(Path(path), MOST_BYTES)
    except OSError as error:
        raise ExportedFileError(f"{path} cannot be read: {error.strerror}") from error


def _line(error: BaseException) -> str:
    """What an error of others says, as one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _imported(name: str, command: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ExportedFileError(f"to run this file {name} is needed, which is not installed: {command}") from error
