"""Random numbers are drawn where a program asks for them, so that with a seed they are those of a loop.

What is computed with them is recorded as ever: `dropout` becomes a product with numbers that are there already. How many numbers a function
draws nearly always follows from shapes; the few that draw by value, such as `poisson`, are called when their arguments are computed.
A recording that is kept draws when it runs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

from foldloom.pytrees import flatten, map_leaves, unflatten
from foldloom.tracing.flushing.flush import Flushes
from foldloom.tracing.functions.calls import name_of
from foldloom.tracing.functions.shape_inference import BY_VALUE
from foldloom.tracing.mutation.in_place import replace
from foldloom.tracing.mutation.outside import is_outside
from foldloom.tracing.mutation.views import layout_of
from foldloom.tracing.rules.base import forms
from foldloom.tracing.rules.draws import bernoulli_with, chosen_with, drawn_from, drawn_instead, normal_with
from foldloom.tracing.rules.modules import width_of_layer
from foldloom.tracing.scope import ActiveRecorder, unwatched
from foldloom.tracing.values.lazy_tensor import LazyTensor


class DrawingRecorder(ActiveRecorder, Protocol):
    """A recorder with the part that says whether a program may draw now."""

    @property
    def flushes(self) -> Flushes: ...


Handler = Callable[[Any, Any, dict[str, Any]], Any]


def draws_now(recorder: DrawingRecorder) -> bool:
    """Whether numbers are drawn where they are asked for. While a call is captured nothing may be drawn: it might be called again."""
    recorder.flushes.check_not_captured("it draws random numbers")
    return not recorder.guards.runs_later


def _like(value: LazyTensor) -> torch.Tensor:
    """A tensor of ones that lies in memory as the value would, in which order random numbers are filled in."""
    shape, strides, _ = layout_of(value)
    with unwatched():
        lies = torch.empty(0, dtype=value.dtype, device="meta").as_strided(shape, strides)
        return torch.ones_like(lies, device=value.device)


def _likes(args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Arguments with such tensors in the place of values."""
    leaves: list[Any] = []
    nesting = flatten((tuple(args), kwargs), leaves)
    return unflatten(nesting, iter([_like(leaf) if type(leaf) is LazyTensor else leaf for leaf in leaves]))  # type: ignore[no-any-return]


def _given(recorder: ActiveRecorder, noise: torch.Tensor, like: LazyTensor) -> LazyTensor:
    """What was drawn, as a value."""
    ragged = like._type.ragged and noise.ndim == len(like._type.shape)
    handle: LazyTensor = recorder.lift(noise, ragged=ragged)
    return handle


def _argument(args: Any, kwargs: dict[str, Any], place: int, *names: str, default: Any = None) -> Any:
    if len(args) > place:
        return args[place]
    return next((kwargs[name] for name in names if name in kwargs), default)


# ---- Dropout.


def _dropped(draw: Callable[[torch.Tensor, float, bool], torch.Tensor], training_by_default: bool) -> Handler:
    """Dropout of numbers or of features: a product."""

    def handle(recorder: DrawingRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
        x, p = _argument(args, kwargs, 0, "input"), _argument(args, kwargs, 1, "p", default=0.5)
        training = _argument(args, kwargs, 2, "training", "train", default=training_by_default)
        if type(x) is not LazyTensor or _argument(args, kwargs, 3, "inplace", default=False):
            return NotImplemented
        if type(p) not in (int, float) or not 0 <= p <= 1 or not x.dtype.is_floating_point:
            return NotImplemented
        if not training or p == 0 or not x.numel():
            return x  # itself, not a copy
        if not draws_now(recorder):
            return NotImplemented
        with unwatched():
            noise = draw(_like(x), p, True)
        return recorder.call_function(torch.mul, (x, _given(recorder, noise, x)), None)

    return handle


_SCALE = 1.7580993408473766
"""Of the activation that alpha dropout is made for."""


def _dropped_to_alpha(draw: Callable[[torch.Tensor, float, bool], torch.Tensor]) -> Handler:
    """Numbers are dropped to the least that a SELU returns, and what is left is scaled and moved."""

    def handle(recorder: DrawingRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
        x, p, training = (_argument(args, kwargs, place, name) for place, name in enumerate(("input", "p", "train")))
        if type(x) is not LazyTensor or not 0 < p < 1 or not training or not x.numel() or not draws_now(recorder):
            return NotImplemented
        with unwatched():
            moved = draw(_like(x).zero_(), p, True)
            kept = (moved > 0).to(x.dtype) / math.sqrt((_SCALE * _SCALE * p + 1) * (1 - p))
        scaled = recorder.call_function(torch.mul, (x, _given(recorder, kept, x)), None)
        return recorder.call_function(torch.add, (scaled, _given(recorder, moved, x)), None)

    return handle


def noise_between_layers(recorder: DrawingRecorder, module: Any, rows: LazyTensor) -> LazyTensor:
    """What the layers of a recurrent module but the last are multiplied by, for each row and layer."""
    with unwatched():
        layer = torch.ones(len(rows), width_of_layer(module), dtype=rows.dtype, device=rows.device)
        noise = [torch.dropout(layer, module.dropout, True) for _ in range(module.num_layers - 1)]
        by_row = torch.stack(noise, 1)
    handle: LazyTensor = recorder.lift(by_row, ragged=True)
    return handle


# ---- Numbers that replace a value, or are drawn from one.


def _alike(function: Any) -> Handler:
    """``rand_like`` and its kin: of the value, only its type counts."""

    def handle(recorder: DrawingRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
        x = _argument(args, kwargs, 0, "input")
        if type(x) is not LazyTensor or not draws_now(recorder):
            return NotImplemented
        like_args, like_kwargs = _likes(args, kwargs)
        with unwatched():
            noise = function(*like_args, **like_kwargs)
        return _given(recorder, noise, x)

    return handle


def _filled(function: Any) -> Handler:
    """``x.normal_()`` and its kin."""

    def handle(recorder: DrawingRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
        x = args[0]
        others = [*args[1:], *kwargs.values()]
        if type(x) is not LazyTensor or any(isinstance(other, torch.Tensor) for other in others):
            return NotImplemented
        if is_outside(recorder, x) or not draws_now(recorder):
            return NotImplemented
        like_args, _ = _likes(args, {})
        with unwatched():
            noise = function(*like_args, **kwargs)
        drawn = _given(recorder, noise, x)
        made = recorder.call_function(drawn_instead, (x, drawn), None) if x.requires_grad else drawn
        replace(recorder, x, made)
        return x

    return handle


def _bernoulli(recorder: DrawingRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
    x = _argument(args, kwargs, 0, "input")
    p, generator = _argument(args, kwargs, 1, "p"), kwargs.get("generator")
    if type(x) is not LazyTensor or kwargs.keys() - {"input", "p", "generator"} or not x.dtype.is_floating_point:
        return NotImplemented
    if (p is not None and type(p) not in (int, float)) or not draws_now(recorder):
        return NotImplemented
    like = _like(x)
    with unwatched():
        if p is not None:
            drawn = _given(recorder, like.bernoulli_(p, generator=generator), x)
            return recorder.call_function(drawn_instead, (x, drawn), None) if x.requires_grad else drawn
        is_double = x.dtype is torch.float64
        noise = (like if is_double else like.float()).uniform_(generator=generator)
    return recorder.call_function(bernoulli_with, (x, _given(recorder, noise, x)), None)


def _normal(recorder: DrawingRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
    mean, spread = _argument(args, kwargs, 0, "mean"), _argument(args, kwargs, 1, "std", default=1.0)
    values = [value for value in (mean, spread) if type(value) is LazyTensor]
    if not values or len(args) > 2 or kwargs.keys() - {"mean", "std", "generator"} or not draws_now(recorder):
        return NotImplemented
    if any(isinstance(value, torch.Tensor) and value.dtype is not values[0].dtype for value in (mean, spread)):
        return NotImplemented
    like_mean = _of_zeros(mean) if isinstance(mean, torch.Tensor) else 0.0
    like_spread = _of_zeros(spread).add_(1) if isinstance(spread, torch.Tensor) else spread
    with unwatched():
        noise = torch.normal(like_mean, like_spread, generator=kwargs.get("generator"))
    same = [value for value in values if value.shape == noise.shape]
    drawn = _given(recorder, noise, same[0]) if same else recorder.lift(noise, ragged=False)
    return recorder.call_function(normal_with, (mean, spread, drawn), None)


def _of_zeros(tensor: Any) -> torch.Tensor:
    with unwatched():
        return _like(tensor).zero_() if type(tensor) is LazyTensor else torch.zeros_like(tensor)


def _multinomial(recorder: DrawingRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
    x, count = _argument(args, kwargs, 0, "input"), _argument(args, kwargs, 1, "num_samples")
    replaces, generator = _argument(args, kwargs, 2, "replacement", default=False), kwargs.get("generator")
    if type(x) is not LazyTensor or type(count) is not int or x.ndim not in (1, 2) or not x.dtype.is_floating_point:
        return NotImplemented
    if not 1 <= count <= x.shape[-1] or (replaces and count > 1) or not draws_now(recorder):
        return NotImplemented
    with unwatched():
        noise = _like(x).exponential_(generator=generator)
    return recorder.call_function(chosen_with, (x, _given(recorder, noise, x), count), None)


# ---- All others.


def drawn_where_called(
    recorder: DrawingRecorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], how: str
) -> Any:
    """A call of a function that draws and is not taken apart. It is recorded with the state of the generator, which then goes on as if it
    had been called; or called, where that depends on values. NotImplemented: it draws nothing with these settings."""
    if how == BY_VALUE or kwargs.get("generator") is not None:
        # Copies, because what the call saves for backward must not change where it stands for one in place.
        return recorder.call_with_values(function, *map_leaves((args, kwargs), partial(_copied, recorder)))
    before = torch.default_generator.get_state()
    like_args, like_kwargs = _likes(args, kwargs)
    try:
        with unwatched(), torch.no_grad():
            function(*like_args, **like_kwargs)
    except Exception:  # of ones, which may be no such thing as it takes
        torch.default_generator.set_state(before)
        return recorder.call_with_values(function, args, kwargs)
    if torch.equal(before, torch.default_generator.get_state()):
        return NotImplemented
    state = recorder.lift(before, ragged=False)
    return recorder.call_function(drawn_from, (state, name_of(function), *args), kwargs)


def _copied(recorder: ActiveRecorder, leaf: Any) -> Any:
    return recorder.call_function(torch.clone, (leaf,), None) if type(leaf) is LazyTensor else leaf


def _never(*_: Any) -> bool:
    return False


@functools.cache
def opened(function: Any) -> Callable[..., Any]:
    """A function of torch's that is written in Python, as if it did not ask whether its arguments are torch's own tensors: what it calls is
    recorded."""
    asks = dict.fromkeys(("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"), _never)
    around = {**function.__globals__, **asks}
    if "torch" in around:
        # Some ask by `torch.overrides.has_torch_function_variadic`.
        around["torch"] = SimpleNamespace(**{**vars(torch), "overrides": SimpleNamespace(**asks)})
    body = FunctionType(function.__code__, around, function.__name__, function.__defaults__, function.__closure__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body


def _taken_apart(function: Any) -> Handler:
    def handle(recorder: DrawingRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
        is_of_values = any(type(arg) is LazyTensor for arg in (*args, *kwargs.values()))
        return opened(function)(*args, **kwargs) if is_of_values and draws_now(recorder) else NotImplemented

    return handle


def _attention(recorder: DrawingRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
    is_trained = _argument(args, kwargs, 13, "training", default=True)
    if not is_trained or not _argument(args, kwargs, 10, "dropout_p") or not draws_now(recorder):
        return NotImplemented
    return opened(functional.multi_head_attention_forward)(*args, **kwargs)


_IN_PLACE = ("normal_", "uniform_", "exponential_", "random_", "geometric_", "cauchy_", "log_normal_", "bernoulli_")
_COMPOSED = (
    functional.alpha_dropout, functional.feature_alpha_dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d,
    functional.gumbel_softmax,
)  # fmt: skip
_INITIALISERS = (nn.init.uniform_, nn.init.normal_, nn.init.constant_, nn.init.kaiming_uniform_)

DRAWING: dict[Any, Handler] = {
    functional.dropout: _dropped(torch.dropout, True),
    torch.dropout: _dropped(torch.dropout, True),
    torch.feature_dropout: _dropped(torch.feature_dropout, True),
    torch.alpha_dropout: _dropped_to_alpha(torch.alpha_dropout),
    torch.feature_alpha_dropout: _dropped_to_alpha(torch.feature_alpha_dropout),
    **{function: _alike(function) for function in forms("rand_like randn_like randint_like")},
    **{getattr(torch.Tensor, name): _filled(getattr(torch.Tensor, name)) for name in _IN_PLACE},
    **dict.fromkeys(forms("bernoulli"), _bernoulli),
    torch.normal: _normal,
    **dict.fromkeys(forms("multinomial"), _multinomial),
    **{function: _taken_apart(function) for function in (*_COMPOSED, *_INITIALISERS)},
    functional.multi_head_attention_forward: _attention,
}
