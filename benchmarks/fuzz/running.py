"""One run of a program: one by one, or batched in one of several ways, and all that can be seen of it afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import foldloom as fl
from benchmarks.fuzz.comparing import tensors_of
from foldloom.tracing import fast_path

Batch = Callable[..., Callable[..., Any]]


@dataclass
class Outcome:
    """``sources`` are the tensors that may get gradients: inputs and weights, by name."""

    results: Any = None
    error: BaseException | None = None
    backward_error: BaseException | None = None
    sources: dict[str, torch.Tensor] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)


def _plain_cell(function: Callable[..., Any]) -> Callable[..., Any]:
    """A cell without Foldloom: a batch of one."""

    def called(*args: torch.Tensor) -> Any:
        result = function(*[arg.unsqueeze(0) for arg in args])
        # Inside a batch, values are no instances of torch.Tensor.
        return tuple(part[0] for part in result) if isinstance(result, tuple) else result[0]

    return called


@dataclass(frozen=True)
class Variant:
    """A way to run a program. A second round runs it with what it left behind, and with what Foldloom has kept of it."""

    name: str
    batch: Batch | None = fl.batch
    cell: Callable[..., Any] = fl.cell
    scheduler: Callable[[], fl.Scheduler] = fl.ByDepth
    marked: bool = False
    rounds: int = 1
    at_once: bool = False
    """Whether functions become automatic cells with their first call, and not after some."""

    def batched(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        if self.batch is None:
            return lambda *columns: [function(*args) for args in zip(*columns, strict=True)]
        return self.batch(function, **options)


ALONE = Variant("one by one", None, _plain_cell)
VARIANTS = (
    Variant("by depth"),
    Variant("by agenda", scheduler=fl.ByAgenda, cell=_plain_cell),
    Variant("small steps", scheduler=lambda: fl.ByDepth(largest_step=2)),
    Variant("cells", marked=True),
    Variant("twice", rounds=2),
    Variant("captured at once", rounds=2, at_once=True),
)


@contextmanager
def _capturing(at_once: bool) -> Iterator[None]:
    if not (at_once and fast_path.is_compiled):
        yield
        return
    before = fast_path.automatic.capture_from(0)
    try:
        yield
    finally:
        fast_path.automatic.capture_from(before)


def run(source: str, variant: Variant, *, scaled_by: float = 1.0, only: int | None = None) -> Outcome:
    """Everything anew, from the same seed, so that two runs have nothing in common but the program."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(True)
    space: dict[str, Any] = {"__name__": "program", "batch": variant.batched, "cell": variant.cell}
    outcome = Outcome()
    with warnings.catch_warnings(), _capturing(variant.at_once):
        warnings.simplefilter("ignore")
        try:
            exec(compile(source, "<program>", "exec", dont_inherit=True), space)
            space["EXAMPLES"] = space["EXAMPLES"] if only is None else space["EXAMPLES"][only : only + 1]
            outcome.sources = dict(_sources(space))
        except Exception as error:  # the minimiser deletes what a program needs
            outcome.error = error
            return outcome
        _scale(outcome.sources, scaled_by)
        _run_examples(space, variant, outcome)
    return outcome


def _run_examples(space: dict[str, Any], variant: Variant, outcome: Outcome) -> None:
    options: dict[str, Any] = {"scheduler": variant.scheduler()}
    try:
        if variant.marked:
            options["cells"] = [getattr(space["net"], name) for name in space.get("CELLS", [])]
        columns = list(zip(*space["EXAMPLES"], strict=True))
        outcome.results = [variant.batched(space["program"], **options)(*columns) for _ in range(variant.rounds)]
    except Exception as error:
        outcome.error = error
    outcome.state = dict(_torch_state())
    if outcome.error is None:
        outcome.state |= _module_state(space)
        try:
            _backward(outcome.results, space.get("USED", "all"))
        except Exception as error:
            outcome.backward_error = error


def _scale(sources: dict[str, torch.Tensor], by: float) -> None:
    with torch.no_grad():
        for tensor in set(sources.values()):
            if by != 1.0 and tensor.is_floating_point():
                tensor.mul_(by)


def _modules(space: dict[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    yield from ((name, value) for name, value in space.items() if isinstance(value, nn.Module))


def _sources(space: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for number, example in enumerate(space["EXAMPLES"]):
        yield from ((f"input {number}", tensor) for tensor in tensors_of(example))
    for name, module in _modules(space):
        yield from ((f"{name}.{path}", weight) for path, weight in module.named_parameters())


def _module_state(space: dict[str, Any]) -> dict[str, Any]:
    """Buffers, and attributes that are not torch's own: what a program leaves behind on its modules."""
    found: dict[str, Any] = {}
    for name, root in _modules(space):
        for path, module in root.named_modules(prefix=name):
            found |= {f"{path}.{key}": item for key, item in module._buffers.items()}
            found |= {f"{path}.{key}": item for key, item in vars(module).items() if key[0] != "_"}
    return found


def _torch_state() -> Iterator[tuple[str, Any]]:
    yield "grad mode", torch.is_grad_enabled()
    yield "inference mode", torch.is_inference_mode_enabled()
    yield "default dtype", torch.get_default_dtype()
    yield "autocast", torch.is_autocast_enabled("cpu")
    yield "random state", torch.get_rng_state()


def _backward(results: Any, used: str) -> None:
    """A loss over some of the results: those it leaves out must get no gradient, not one of zeros."""
    # Picked by their place alone: a tensor that needs a gradient and should not must not move the others.
    tensors = [tensor for tensor in tensors_of(_chosen(results, used)) if tensor.is_floating_point()]
    if used == "one tensor":
        tensors = tensors[len(tensors) // 2 :][:1]
    if used == "every second":
        tensors = tensors[::2]
    terms = []
    for number, tensor in enumerate(tensors):
        factors = torch.cos(torch.arange(tensor.numel(), dtype=torch.float64) + number).view(tensor.shape)
        terms.append((tensor * factors).sum().double())
    if any(term.requires_grad for term in terms):
        torch.stack(terms).sum().backward()


def _chosen(rounds: list[Any], used: str) -> list[Any]:
    if used == "first":
        return [results[:1] for results in rounds]
    return [results[-1:] for results in rounds] if used == "last" else rounds
