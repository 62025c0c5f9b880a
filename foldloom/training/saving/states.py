"""Nested values with tensors in them as JSON and safetensors: what an optimiser remembers, say. Nothing else can be in such a file, so
reading one runs no code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from foldloom.data.reading import installed
from foldloom.errors import RunError

Tensors = dict[str, torch.Tensor]


def packed(value: Any, name: str) -> dict[str, bytes]:
    """The files ``name.json`` and, where there are tensors, ``name.safetensors``."""
    tensors: Tensors = {}
    plain = _taken_apart(value, tensors, name)
    files = {f"{name}.json": json.dumps(plain, allow_nan=False).encode()}
    return files | ({f"{name}.safetensors": tensor_bytes(tensors)} if tensors else {})


def unpacked(files: Mapping[str, bytes], name: str) -> Any:
    """What `packed` was given; raises ValueError, KeyError or TypeError for anything else."""
    held = files.get(f"{name}.safetensors")
    return _put_together(parsed_json(files[f"{name}.json"]), {} if held is None else tensors_in(held))


def tensor_bytes(tensors: Mapping[str, torch.Tensor], about: Mapping[str, str] | None = None) -> bytes:
    library = installed("safetensors.torch", extra="train", to="keep weights")
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    data: bytes = library.save(plain, None if about is None else dict(about))
    return data


def tensors_in(data: bytes) -> Tensors:
    library = installed("safetensors.torch", extra="train", to="read weights")
    try:
        tensors: Tensors = library.load(data)
    except Exception as error:  # the library has an error of its own, and others for types that torch does not know
        raise ValueError(f"it is no safetensors file: {error}") from error
    return tensors


def parsed_json(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error


def _taken_apart(value: Any, tensors: Tensors, name: str) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"number": str(value)}
        case torch.Tensor():
            key = str(len(tensors))
            # A view of larger memory is kept without the rest, and two names of one memory as two tensors.
            tensors[key] = value.detach().clone()
            return {"tensor": key}
        case np.generic():
            return _taken_apart(value.item(), tensors, name)
        case list() | tuple():
            return {type(value).__name__: [_taken_apart(item, tensors, name) for item in value]}
        case dict():
            pairs = [[_taken_apart(part, tensors, name) for part in pair] for pair in value.items()]
            return {"dict": pairs}
    raise RunError(f"cannot keep {name} of a training: {type(value).__name__} is neither a plain value nor a tensor")


def _put_together(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise ValueError("a list without its kind")
        return value
    [(kind, held)] = value.items()
    match kind:
        case "tensor":
            return tensors[held]
        case "number":
            return float(held)
        case "list":
            return [_put_together(item, tensors) for item in held]
        case "tuple":
            return tuple([_put_together(item, tensors) for item in held])
        case "dict":
            return {_put_together(key, tensors): _put_together(item, tensors) for key, item in held}
    raise ValueError(f"{kind!r} is no kind of value")
