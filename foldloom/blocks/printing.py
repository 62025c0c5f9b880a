"""The repr of blocks: the expression that creates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

_LONGEST = 70


def expression(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    shown = [printed(value) for value in args] + [f"{key}={printed(value)}" for key, value in kwargs.items()]
    return f"{name}({', '.join(shown)})"


def printed(value: Any) -> str:
    if isinstance(value, torch.nn.Module):
        text = repr(value)
        return text if "\n" not in text else f"{type(value).__name__}(...)"
    if isinstance(value, torch.Tensor):
        return f"<{str(value.dtype).removeprefix('torch.')} tensor {list(value.shape)}>"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {printed(item)}" for key, item in value.items()) + "}"
    if type(value) is list:
        return f"[{', '.join(map(printed, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(printed, value))}{',' if len(value) == 1 else ''})"
    is_function = callable(value) and hasattr(value, "__name__")
    return str(value.__name__) if is_function else repr(value)


def shortened(value: Any) -> str:
    """The repr for error messages, with the middle of long ones left out."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 4 :]}"
