"""Finding 15: nothing lives for ever, and nothing hangs."""

from __future__ import annotations

import gc
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import foldloom as fl
from tests.never_wrong.checking import exit_code_of_a_child, linear, vectors

MODULES: dict[str, Callable[[], nn.Module]] = {
    "Linear": linear,
    "LSTM": lambda: nn.LSTM(3, 3, dtype=torch.float64),
    "GRU": lambda: nn.GRU(3, 3, dtype=torch.float64),
    "Sequential": lambda: nn.Sequential(linear(), nn.Tanh(), linear()),
    "LayerNorm": lambda: nn.LayerNorm(3, dtype=torch.float64),
    "Dropout": lambda: nn.Dropout(0.5),
    "ModuleList": lambda: _Layers(),
    "cell": lambda: fl.cell(linear()),
    "MultiheadAttention": lambda: _Attention(),
    "weight_norm": lambda: nn.utils.parametrizations.weight_norm(linear()),
    "GELU": nn.GELU,
    "BatchNorm1d": lambda: nn.BatchNorm1d(3, dtype=torch.float64).eval(),
}


class _Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([linear(), linear()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(3, 1, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x)[0]


def dead_after(run: Callable[[nn.Module], Any], make: Callable[[], nn.Module]) -> bool:
    gc.freeze()  # what there was before need not be searched
    module = make()
    references = [weakref.ref(part) for part in (*module.modules(), *module.parameters())]
    run(module)
    del module
    gc.collect()
    gc.unfreeze()
    return all(reference() is None for reference in references)


@pytest.mark.parametrize(
    "name",
    list(MODULES),
)
def test_modules_die(name: str) -> None:
    inputs = vectors(3, 2, 3) if name != "cell" else vectors()

    def run(module: nn.Module) -> None:
        results = fl.batch(lambda x: module(x * 2))(inputs)
        sum((result[0] if isinstance(result, tuple) else result).sum() for result in results).backward()

    assert dead_after(run, MODULES[name])


@pytest.mark.parametrize("name", ["Linear", "LSTM", "Sequential"])
def test_modules_of_programs_that_wait_die(name: str) -> None:
    def run(module: nn.Module) -> None:
        def function(x: torch.Tensor) -> Any:
            result = module(x)
            result = result[0] if isinstance(result, tuple) else result
            return result if result.sum() > 0 else x

        fl.batch(function)(vectors(3, 2, 3))

    assert dead_after(run, MODULES[name])


def test_modules_of_programs_that_fail_die() -> None:
    def run(module: nn.Module) -> None:
        def function(x: torch.Tensor) -> Any:
            if module(x).sum() > -1000:
                raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            fl.batch(function)(vectors())

    assert dead_after(run, linear)


def test_modules_that_were_recorded_die() -> None:
    assert dead_after(lambda module: fl.plan(fl.record_each(module, vectors())), linear)


def test_functions_and_inputs_die() -> None:
    class Big:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    function, inputs = Big(), vectors()
    references = [weakref.ref(function), *(weakref.ref(x) for x in inputs)]
    fl.batch(function)(inputs)
    del function, inputs
    gc.collect()
    assert all(reference() is None for reference in references)


def test_values_kept_after_a_batch_hold_no_weights() -> None:
    kept: list[Any] = []

    def run(module: nn.Module) -> None:
        fl.batch(lambda x: kept.append(x.shape) or module(x))(vectors())  # type: ignore[func-returns-value]

    assert dead_after(run, linear)


# ---- Workers.


def planned_with_gradients(batch: list[Any]) -> Any:
    """A recording that holds a tensor that needs gradients cannot leave its process."""
    return fl.plan([fl.record(lambda x: x * 2, torch.ones(3, requires_grad=True)) for _ in batch])


@pytest.mark.filterwarnings("ignore")
def test_a_worker_whose_plan_cannot_be_pickled_says_so() -> None:
    def run() -> None:
        loader: Any = torch.utils.data.DataLoader(
            [1, 2],  # type: ignore[arg-type]
            batch_size=2,
            num_workers=1,
            collate_fn=planned_with_gradients,
        )
        with pytest.raises(Exception, match=r"(?i)pickle|another process|gradients"):
            next(iter(loader))

    assert exit_code_of_a_child(run, 2) == 0


# ---- Interrupts.


def test_interrupts_leave_torch_as_it_was() -> None:
    """Interrupted at many moments, a batch ends with KeyboardInterrupt, and everything is as before."""
    layer, inputs = linear(), vectors(20)

    def function(x: torch.Tensor) -> Any:
        for _ in range(4):
            x = layer(x).tanh()
            if x.sum() > 100:
                break
        return x

    def run() -> None:
        main = threading.main_thread().ident
        assert main is not None
        fl.batch(function)(inputs)
        for number in range(300):
            timer = threading.Timer(0.0005 + 0.00001 * number, signal.pthread_kill, (main, signal.SIGINT))
            try:
                timer.start()
                while timer.is_alive():
                    fl.batch(function)(inputs)
                time.sleep(0.01)
            except KeyboardInterrupt:
                timer.join()
            assert gc.isenabled()
            assert torch.is_grad_enabled()
            assert not _get_current_function_mode_stack()
        results = fl.batch(function)(inputs)
        torch.testing.assert_close(results, [function(x) for x in inputs])

    assert exit_code_of_a_child(run, 30) == 0


def test_an_error_leaves_torch_as_it_was() -> None:
    def function(x: torch.Tensor) -> Any:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            if (x * 2).sum() > -1000:
                raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            fl.batch(function)(vectors())
        assert gc.isenabled()
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert not _get_current_function_mode_stack()


def test_a_switched_off_collector_stays_off() -> None:
    gc.disable()
    try:
        fl.batch(lambda x: x * 2 if x.sum() > 0 else x)(vectors())
        assert not gc.isenabled()
    finally:
        gc.enable()
