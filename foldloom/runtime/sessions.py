"""Backends that run an exported file: ONNX Runtime, or torch."""

from __future__ import annotations

import importlib
import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foldloom.errors import ExportedFileError
from foldloom.runtime.description import KEY, Array, Description


class Session(ABC):
    """A loaded file."""

    description: Description

    @abstractmethod
    def run(self, feeds: Mapping[str, Array]) -> Sequence[Array]:
        """The outputs of each type."""


def session_of(path: str | Path, threads: int | None = None) -> Session:
    if not Path(path).exists():
        raise ExportedFileError(f"there is no file {path}: write it with `fl.export(model, {str(path)!r}, examples)`")
    if Path(path).suffix == ".pt2":
        return TorchSession(str(path), threads)
    return OnnxSession(str(path), threads)


class OnnxSession(Session):
    def __init__(self, path: str, threads: int | None) -> None:
        runtime = _imported("onnxruntime", "pip install 'foldloom[runtime]'")
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self._session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ExportedFileError(f"{path} is no file that ONNX Runtime can run: {error}") from error
        metadata = self._session.get_modelmeta().custom_metadata_map
        if KEY not in metadata:
            raise ExportedFileError(
                f"{path} is an ONNX file, but not one that `fl.export` wrote: it does not say which cells it has"
            )
        self.description = Description.from_json(metadata[KEY], path)

    def run(self, feeds: Mapping[str, Array]) -> Sequence[Array]:
        outputs: Sequence[Array] = self._session.run(None, dict(feeds))
        return outputs


class TorchSession(Session):
    def __init__(self, path: str, threads: int | None) -> None:
        self._torch = _imported("torch", "pip install 'foldloom[torch]'")
        if threads is not None:
            self._torch.set_num_threads(threads)
        extra: dict[str, Any] = {KEY: ""}
        try:
            program = self._torch.export.load(path, extra_files=extra)
        except (RuntimeError, ValueError, KeyError, zipfile.BadZipFile, json.JSONDecodeError) as error:
            raise ExportedFileError(f"{path} is no file that torch.export can load: {error}") from error
        if not extra[KEY]:
            raise ExportedFileError(
                f"{path} was written by torch.export, but not by `fl.export`: it does not say which cells it has"
            )
        self.description = Description.from_json(extra[KEY], path)
        self._module = program.module()

    def run(self, feeds: Mapping[str, Array]) -> Sequence[Array]:
        with self._torch.no_grad():
            outputs = self._module(*[self._torch.from_numpy(feed) for feed in feeds.values()])
        return [output.numpy() for output in outputs]


def _imported(name: str, command: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ExportedFileError(f"to run this file {name} is needed, which is not installed: {command}") from error
