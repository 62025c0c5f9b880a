"""Torch's state of the thread and of the process, as something that can be noted, left and taken up again.

Modes and settings are a `TorchState`; a default generator, from which several draw in turn, is a `Stream`. Which of them belongs to whom
is for `fibers` to decide.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Callable
from ctypes import c_char
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import get_default_dtype, is_anomaly_enabled, is_grad_enabled, is_inference_mode_enabled

from foldloom.torch_private import (
    InferenceMode,
    count_dispatch_modes,
    count_function_modes,
    current_transform_level,
    disable_saved_tensor_hooks,
    dispatch_modes,
    enable_saved_tensor_hooks,
    function_mode_at,
    get_deterministic_algorithms,
    get_deterministic_warn_only,
    get_torch_function_state,
    global_device_context,
    is_any_autocast_enabled,
    is_multithreading_enabled,
    is_torch_function_enabled,
    pop_dispatch_mode,
    pop_function_mode,
    pop_saved_tensor_hooks,
    push_dispatch_mode,
    push_function_mode,
    push_saved_tensor_hooks,
    saved_tensor_hooks_refusal,
    set_deterministic_algorithms,
    set_grad_enabled,
    set_multithreading_enabled,
    set_torch_function_state,
    top_saved_tensor_hooks,
)
from foldloom.tracing.fast_path import answers_are, holds_bytes
from foldloom.tracing.fibers.seeding import Drawing, has_seeded, watch_seeding


class Stream:
    """One of torch's default generators, and who draws from what."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._own: dict[Drawing, torch.Tensor | int] = {}
        """What those fibers will draw from that do not draw from the common stream: a state, or a seed."""
        self._parted = 0
        self._bytes_at = (c_char * generator.get_state().nbytes).from_address
        self.refresh()

    def refresh(self) -> None:
        """Note where the common stream is: tasks that do not pause, and `advance`, draw from it without being watched."""
        self._common = self._generator.get_state()
        self._content = self._bytes_at(self._common.data_ptr()).raw

    def part(self, fiber: Drawing) -> None:
        """The fiber pauses. If it has drawn, those that come after it go on from there, as in a loop, and what it draws later is from a
        stream of its own. If it has seeded the generator, what it would draw next is kept for it, and the others get other numbers."""
        now = self._generator.get_state()
        if fiber.has_stream and fiber in self._own:
            self._own[fiber] = now
            self._generator.set_state(self._common)
            return
        # Comparing tensors takes ten times as long, and this is done whenever a fiber pauses.
        if not fiber.has_seeded and holds_bytes(now.data_ptr(), self._content):
            return
        content = self._bytes_at(now.data_ptr()).raw
        fiber.has_stream = True
        self._parted += 1
        digest = hashlib.blake2b(content, digest_size=8, salt=self._parted.to_bytes(8, "little")).digest()
        other = int.from_bytes(digest, "little")
        if has_seeded(fiber, self._content, content):
            self._own[fiber] = now
            self._generator.manual_seed(other)
        else:
            self._own[fiber] = other
        self.refresh()

    def join(self, fiber: Drawing) -> None:
        own = self._own.get(fiber)
        if isinstance(own, int):
            self._generator.manual_seed(own)
        elif own is not None:
            self._generator.set_state(own)

    def give_back(self, fiber: Drawing) -> None:
        """The fiber's tasks are done."""
        if self._own.pop(fiber, None) is not None:
            self._generator.set_state(self._common)


def streams() -> list[Stream]:
    watch_seeding()
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():
        generators += torch.cuda.default_generators
    return [Stream(generator) for generator in generators]


class TorchState(NamedTuple):
    """What torch keeps for the whole thread, or the whole process, and a task may change for itself."""

    outline: tuple[Any, ...]
    plain: bool
    """Whether nothing is on that has settings, so that the outline says all."""
    grad: bool
    inference: bool
    dtype: torch.dtype
    anomaly: tuple[bool, bool]
    deterministic: tuple[bool, bool]
    multithreading: bool
    overrides: Any
    autocast: tuple[Any, ...]
    hooks_refusal: str | None
    hooks: tuple[Any, ...]
    dispatch_modes: tuple[Any, ...]
    function_modes: tuple[Any, ...]
    device_context: Any

    @staticmethod
    def capture() -> TorchState:
        hooks = _saved_tensor_hooks()
        modes = count_dispatch_modes() + count_function_modes()
        anomaly, deterministic = is_anomaly_enabled(), get_deterministic_algorithms()
        return TorchState(
            outline(),
            not (anomaly or deterministic or hooks or modes or is_any_autocast_enabled()),
            is_grad_enabled(),
            is_inference_mode_enabled(),
            get_default_dtype(),
            (anomaly, torch.is_anomaly_check_nan_enabled()),
            (deterministic, get_deterministic_warn_only()),
            is_multithreading_enabled(),
            get_torch_function_state(),
            _autocast_settings(),
            saved_tensor_hooks_refusal(),
            hooks,
            tuple(dispatch_modes()),
            _function_modes(),
            getattr(global_device_context, "device_context", None),
        )

    def holds(self) -> bool:
        """Whether this is the state now. Settings of what is off, before and now, are not looked at."""
        return (
            is_grad_enabled() is self.grad
            and count_function_modes() == len(self.function_modes)
            and answers_are(OUTLINE, self.outline)
            and (self.plain or TorchState.capture() == self)
        )

    def without_modes(self) -> TorchState:
        if not (self.dispatch_modes or self.function_modes):
            return self
        self.apply(modes=False)
        try:
            return TorchState.capture()
        finally:
            self.apply()

    def apply(self, *, modes: bool = True) -> None:
        """Make this the state: all but inference mode and layers of `torch.func`, which can only be entered and left."""
        # Modes would see what is called here, so they go first and come last.
        while count_function_modes():
            pop_function_mode()
        while count_dispatch_modes():
            pop_dispatch_mode()
        set_torch_function_state(self.overrides)
        set_grad_enabled(self.grad)
        torch.set_default_dtype(self.dtype)
        torch.set_anomaly_enabled(*self.anomaly)
        set_deterministic_algorithms(self.deterministic[0], warn_only=self.deterministic[1])
        set_multithreading_enabled(self.multithreading)
        if _autocast_settings() != self.autocast:
            *devices, cached = self.autocast
            for device, enabled, dtype in devices:
                torch.set_autocast_enabled(device, enabled)
                torch.set_autocast_dtype(device, dtype)
            torch.set_autocast_cache_enabled(cached)
            torch.clear_autocast_cache()  # it holds weights that were cast for another fiber, perhaps without gradients
        enable_saved_tensor_hooks()
        _take_saved_tensor_hooks()
        for pack, unpack in self.hooks:
            push_saved_tensor_hooks(pack, unpack)
        if self.hooks_refusal is not None:
            disable_saved_tensor_hooks(self.hooks_refusal, False)
        global_device_context.device_context = self.device_context if modes else None
        if modes:
            for mode in self.dispatch_modes:
                push_dispatch_mode(mode)
            for mode in self.function_modes:
                push_function_mode(mode)


OUTLINE: tuple[Callable[[], Any], ...] = (
    is_inference_mode_enabled,
    get_default_dtype,
    is_anomaly_enabled,
    get_deterministic_algorithms,
    is_multithreading_enabled,
    is_torch_function_enabled,
    is_any_autocast_enabled,
    count_dispatch_modes,
    partial(top_saved_tensor_hooks, True),
    current_transform_level,
)
"""What tells all but the grad mode and function modes."""


def outline() -> tuple[Any, ...]:
    return tuple([ask() for ask in OUTLINE])


def _function_modes() -> tuple[Any, ...]:
    return tuple([function_mode_at(number) for number in range(count_function_modes())])


def _autocast_settings() -> tuple[Any, ...]:
    devices = ["cpu"]
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None:
        devices.append(accelerator.type)
    settings = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices]
    return (*settings, torch.is_autocast_cache_enabled())


def _take_saved_tensor_hooks() -> list[Any]:
    """All of them, outermost first."""
    hooks: list[Any] = []
    while (top := top_saved_tensor_hooks(True)) is not None:
        hooks.insert(0, top)
        pop_saved_tensor_hooks()
    return hooks


def _saved_tensor_hooks() -> tuple[Any, ...]:
    hooks = _take_saved_tensor_hooks()
    for pack, unpack in hooks:
        push_saved_tensor_hooks(pack, unpack)
    return tuple(hooks)


def cross_inference_mode(inside: bool) -> Any:
    """Enter or leave inference mode, if that is to be done; exiting what is returned brings back all that held before.

    Guards of different fibers do not nest, which is no harm: each brings back what it found, not what another changed.
    """
    if is_inference_mode_enabled() is inside:
        return None
    guard = InferenceMode(inside)
    guard.__enter__()
    return guard


class Outputs(NamedTuple):
    """Where prints and warnings go: `redirect_stdout` and `catch_warnings` change it for the whole process."""

    stdout: Any
    stderr: Any
    filters: Any
    show: Any
    show_message: Any

    @staticmethod
    def now() -> Outputs:
        implementation = getattr(warnings, "_showwarnmsg_impl", None)
        return Outputs(sys.stdout, sys.stderr, warnings.filters, warnings.showwarning, implementation)

    def apply(self) -> None:
        sys.stdout, sys.stderr = self.stdout, self.stderr
        warnings.filters, warnings.showwarning = self.filters, self.show
        if self.show_message is not None:
            warnings._showwarnmsg_impl = self.show_message  # type: ignore[attr-defined]
        warnings._filters_mutated()  # type: ignore[attr-defined]
