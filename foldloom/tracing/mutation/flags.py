"""`requires_grad` of weights, switched inside a program: a discriminator is frozen while the loss of the generator is computed.

Calls run later than they are recorded, so what holds is the flag at the time of the call. A weight that is frozen for a while is recorded, in calls
made meanwhile, as what `detach` returns of it; and steps run with the flags that weights had at first.
"""

from __future__ import annotations

from typing import Any

import torch

from foldloom.tracing.scope import ActiveRecorder, recording_paused

_SWITCHES: frozenset[Any] = frozenset((torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__))  # type: ignore[attr-defined]


def switches_flag(function: Any) -> bool:
    return function in _SWITCHES


def switch_flag(recorder: ActiveRecorder, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`requires_grad_` of a tensor of the user's."""
    tensor: torch.Tensor = args[0]
    before = tensor.requires_grad
    wanted = bool(args[1] if len(args) > 1 else kwargs.get("requires_grad", True))
    if wanted != before:
        recorder.outside.wait_for_turn([tensor])
        recorder.guards.note_flag(tensor)
        if wanted and not recorder.guards.first_flag(tensor):
            recorder.outside.run_readers([tensor])
    with recording_paused():
        result = function(*args, **kwargs)
    if tensor.requires_grad != before:
        recorder.note_flag(tensor)
    return result
