"""Weights of a model as a safetensors file that says whose they are, and what is refused when they are read again.

The file has a checksum of its tensors and the identity of its training (`Run.identity`) in its header. So a bit that was flipped is noticed,
and so are weights of another training that happen to have the same shapes but stand for other words.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from foldloom.errors import RunError
from foldloom.torch_private import TorchDispatchMode
from foldloom.training.saving.states import Tensors, parsed_json, tensor_bytes, tensors_in

HEADER_BYTES = 1 << 24
"""A file of weights may have so many bytes beside its tensors."""


TRIED_BYTES = 1 << 28
"""So much more than its weights a model may make as it is built: cells are tried on a few made-up members."""


def weights_of(model: nn.Module) -> Tensors:
    """By name. What has two names is there once, under the first."""
    kept: dict[int, str] = {}
    values = model.state_dict(keep_vars=True)
    for name, value in values.items():
        kept.setdefault(id(value), name)
    return {name: values[name] for name in kept.values()}


def size_of(model: nn.Module) -> int:
    """How large a file of its weights may be, in bytes."""
    return sum(value.nbytes for value in weights_of(model).values()) + HEADER_BYTES


@contextmanager
def no_tensor_above(bytes: int, problem: str) -> Iterator[None]:
    """Whoever asks for a larger tensor within it gets a `RunError` that says ``problem``, before any of it is written to."""
    try:
        with _Bounded(bytes):
            yield
    except (_TooLargeError, MemoryError) as error:
        raise RunError(problem) from error
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        raise RunError(problem) from error


class _TooLargeError(Exception):
    pass


class _Bounded(TorchDispatchMode):
    def __init__(self, bytes: int) -> None:
        super().__init__()
        self._bytes = bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.nbytes > self._bytes + TRIED_BYTES:
            raise _TooLargeError
        return made


def weight_bytes(model: nn.Module, identity: str) -> bytes:
    weights = weights_of(model)
    # Under one key: the library writes several in any order, and equal weights are to be equal files.
    about = {"training": identity, "sha256": checksum(weights)}
    return tensor_bytes(weights, {"foldloom": json.dumps(about, sort_keys=True)})


def checked_weights(model: nn.Module, data: bytes, name: str, identity: str) -> Tensors:
    """Those of a file that `weight_bytes` made of such a model. ``name`` is the file's, for errors."""
    try:
        about, tensors = _header(data), tensors_in(data)
    except ValueError as error:
        raise RunError(f"{name} is damaged: {error}") from error
    fit(model, tensors, name)
    if about.get("sha256") != checksum(tensors):
        raise RunError(f"{name} is damaged: its checksum is not that of its weights")
    if about.get("training") != identity:
        raise RunError(
            f"{name} has weights that do not belong to the config.json beside it: they are of another training, or config.json was changed"
        )
    return tensors


def fit(model: nn.Module, tensors: Mapping[str, torch.Tensor], name: str) -> None:
    """That tensors are what the model has as weights, and are numbers."""
    wanted = weights_of(model)
    for key in wanted.keys() - tensors.keys():
        raise RunError(f"{name} lacks the weight {key!r} of this model")
    for key, tensor in tensors.items():
        own = wanted.get(key)
        if own is None:
            raise RunError(f"{name} has a weight {key!r}, which this model does not have")
        if (tensor.shape, tensor.dtype) != (own.shape, own.dtype):
            raise RunError(f"{name}: the weight {key!r} is {_told(tensor)}, and this model has {_told(own)} there")
    nameless = not_finite(tensors)
    if nameless is not None:
        raise RunError(f"{name}: the weight {nameless!r} has entries that are infinite or no numbers")


def not_finite(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """The name of a weight that has entries that are infinite or no numbers, if there is one."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.detach()).all()):
            return name
    return None


def set_weights(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, own in weights_of(model).items():
            own.copy_(tensors[name])


def checksum(tensors: Mapping[str, torch.Tensor]) -> str:
    """Of names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{_told(tensor)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _told(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _header(data: bytes) -> Mapping[str, Any]:
    """What stands in the header beside the tensors."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(HEADER_BYTES, len(data) - 8):
        raise ValueError("it is no safetensors file: it ends before its header does")
    try:
        about = parsed_json(parsed_json(data[8 : 8 + length])["__metadata__"]["foldloom"].encode())
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("it does not say which training it is of") from error
    return about if isinstance(about, dict) else {}
