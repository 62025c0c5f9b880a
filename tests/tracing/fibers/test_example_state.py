"""What an example writes to modules, lists and globals: others see of it what they would see in a loop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom.errors import CellError, SharedStateError
from foldloom.tracing.flushing.flush import Flushes

XS = [torch.tensor([float(n), 1.0 - 2 * (n % 2)]) for n in range(6)]


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2).double().float()
        self.count = 0
        self.h: Any = None
        self.cache: Any = None
        self.log: list[Any] = []
        self.table = {"n": 0}
        self.register_buffer("state", torch.zeros(2))


def plain(value: Any) -> Any:
    """Comparable: tensors and values as lists."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def left_on(module: nn.Module) -> dict[str, Any]:
    attributes = {
        name: value for name, value in vars(module).items() if name in ("count", "h", "cache", "log", "table")
    }
    return plain({**attributes, **dict(module._buffers), "names": sorted(vars(module))})


def check(make: Callable[[], Any], xs: list[Any] = XS, times: int = 3) -> None:
    """Batched as one by one, several times over, with what is left behind."""
    torch.manual_seed(0)
    batched = make()
    torch.manual_seed(0)
    alone = make()
    for _ in range(times):
        assert plain(fl.batch(batched)(xs)) == plain([alone(x) for x in xs])
        if isinstance(batched, nn.Module):
            for one, other in zip(batched.modules(), alone.modules(), strict=True):
                assert left_on(one) == left_on(other)


def rounds(function: Any, xs: list[Any] = XS) -> int:
    """How many times a batch computes something."""
    count = 0
    recorded = Flushes._flush

    def counted(*args: Any, **settings: Any) -> Any:
        nonlocal count
        count += 1
        return recorded(*args, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flushes, "_flush", counted)
        fl.batch(function)(xs)
    return count


class Written(Base):
    def forward(self, x: Any) -> Any:
        self.h = x * 2
        if self.h.sum() > 2:
            self.h = self.h + 1
        return self.h


class ReadAfterAnother(Base):
    def forward(self, x: Any) -> Any:
        before = self.h
        if x.sum() > 1:
            self.h = x
        return x if before is None else x + before


class Counting(Base):
    def forward(self, x: Any) -> Any:
        self.count += 1
        if x.sum() > 1:
            self.count += 10
        return x * self.count


class ReadEarlyWrittenLate(Base):
    def forward(self, x: Any) -> Any:
        n = self.count
        if x.sum() > 1:
            n += 1
        self.count = n + 1
        return x * n


class Cached(Base):
    def forward(self, x: Any) -> Any:
        if x.sum() > 1 and self.cache is None:
            self.cache = x * 3
        if x[1] > 0:
            return x
        return x if self.cache is None else x + self.cache


class Nested(Base):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Counting()
        self.other = Written()

    def forward(self, x: Any) -> Any:
        return self.other(self.inner(x)) + self.inner.count


class Deleted(Base):
    def forward(self, x: Any) -> Any:
        if hasattr(self, "h"):
            del self.h
        else:
            self.h = x
        if x.sum() > 1:
            x = x + 1
        return x, hasattr(self, "h")


class Fresh(Base):
    def forward(self, x: Any) -> Any:
        seen = getattr(self, "fresh", None)
        if x.sum() > 1:
            self.fresh = x * 2
        return x if seen is None else x + seen


class WithProperty(Base):
    @property
    def hidden(self) -> Any:
        return self._hidden

    @hidden.setter
    def hidden(self, value: Any) -> Any:
        self._hidden = value

    def forward(self, x: Any) -> Any:
        self.hidden = x + 1
        if x.sum() > 1:
            self.hidden = self.hidden * 2
        return self.hidden


class Buffered(Base):
    state: torch.Tensor

    def forward(self, x: Any) -> Any:
        self.state = self.state + x
        if self.state.sum() > 3:
            self.state = self.state * 0.5
        return self.state * 1


class NewBuffer(Base):
    def forward(self, x: Any) -> Any:
        if "made" not in self._buffers:
            self.register_buffer("made", torch.ones(2))
        if x.sum() > 1:
            return x + self.made
        return x


class ByName(Base):
    def forward(self, x: Any) -> Any:
        for name in ("a", "b"):
            setattr(self, f"{name}_state", x)
        if x.sum() > 1:
            self.a_state = self.a_state + 1  # type: ignore[has-type]
        return self.a_state + self.b_state


class Logging(Base):
    def forward(self, x: Any) -> Any:
        total = (x * 2).sum().item()
        self.log.append(total)
        self.table["n"] += 1
        return x * len(self.log)


class ClassDefault(Base):
    best = 0.0

    def forward(self, x: Any) -> Any:
        if x.sum() > self.best:
            self.best = x.sum().item()
        return x * self.best


class Inner(Base):
    """A batch inside, whose examples write, too."""

    def forward(self, x: Any) -> Any:
        self.h = x

        def step(k: Any) -> Any:
            self.count += 1
            if (self.h * k).sum() > 2:
                self.h = self.h + 1
            return self.h * k

        ys = fl.batch(step)([1.0, 2.0])
        return ys[0] + ys[1], self.h * self.count


class Generator(Base):
    def steps(self, x: Any) -> Iterator[Any]:
        for _ in range(3):
            self.h = x if self.h is None else self.h + x
            yield self.h

    def forward(self, x: Any) -> Any:
        self.h = None
        for h in self.steps(x):
            if h.sum() > 4:
                break
        return self.h


class Switching(Base):
    def forward(self, x: Any) -> Any:
        was = self.training
        self.eval()
        if x.sum() > 1:
            x = x + 1
        x = x + float(self.training)
        self.train(was)
        return x


class Copies(Base):
    def forward(self, x: Any) -> Any:
        own = copy.copy(self)
        own.h = x * 2
        if own.h.sum() > 2:
            own.h = own.h + 1
        made: Any = nn.Sequential(nn.Tanh())
        made.count = 3
        self.count = own.count + 1
        return own.h * made.count


class SomeFinish(Base):
    def forward(self, x: Any) -> Any:
        self.count += 1
        if int(x.shape[0]) == 2 and self.count % 2:
            return x * self.count
        self.h = x
        if x.sum() > 0:
            return self.h + self.count
        return self.h


MODULES = [
    Written, ReadAfterAnother, Counting, ReadEarlyWrittenLate, Cached, Nested, Deleted, Fresh, WithProperty, Buffered,
    NewBuffer, ByName, Logging, ClassDefault, Inner, Generator, Switching, Copies, SomeFinish,
]  # fmt: skip


@pytest.mark.parametrize("kind", MODULES)
def test_state_of_modules(kind: type[nn.Module]) -> None:
    check(kind)


@pytest.mark.parametrize("kind", [Written, WithProperty, ByName, Generator])
def test_what_is_written_first_batches(kind: type[nn.Module]) -> None:
    model = kind()
    assert rounds(model) <= 5 < len(XS)


def test_functions_of_a_module_of_the_enclosing_function() -> None:
    def make() -> Any:
        module = Base()

        def f(x: Any) -> Any:
            module.h = x * 2
            if module.h.sum() > 2:
                module.h = module.h + 1
            return module.h

        return f

    check(make)


def test_an_attribute_that_is_only_read_waits_once() -> None:
    class ReadFirst(Base):
        def forward(self, x: Any) -> Any:
            cache = self.cache
            if x.sum() > 100:
                self.cache = x
            return x + cache

    model = ReadFirst()
    model.cache = torch.ones(2)
    assert rounds(model) > len(XS)
    assert rounds(model) < 4
    with pytest.raises(SharedStateError, match="example 2 writes attribute `cache` of ReadFirst after example 3"):
        fl.batch(model)([*XS[:2], XS[2] * 1000, *XS[3:]])
    check(lambda: with_cache(ReadFirst()))


def with_cache(model: Any) -> Any:
    model.cache = torch.ones(2)
    return model


def test_modules_are_left_as_a_loop_leaves_them_on_errors() -> None:
    class Failing(Base):
        def forward(self, x: Any) -> Any:
            self.h = x * 2
            self.count += 1
            if (x[0] == 3 and x.sum() > 0) or (x[0] * 1).item() == 3:
                raise ValueError("three")
            return self.h

    model, alone = Failing(), Failing()
    with pytest.raises(ValueError, match="three"):
        fl.batch(model)(XS)
    with pytest.raises(ValueError, match="three"):
        [alone(x) for x in XS]
    assert model.count == alone.count
    assert sorted(vars(model)) == sorted(vars(alone))


def test_a_cell_may_not_read_what_examples_write() -> None:
    class WithCell(Base):
        def __init__(self) -> None:
            super().__init__()
            self.step = fl.cell(lambda x: x * self.count)

        def forward(self, x: Any) -> Any:
            if (x * 1).sum() > 1:
                x = x + 1
            self.count = int(x[0])
            return self.step(x) if self.step(x).sum() > 0 else x

    with pytest.raises((SharedStateError, CellError), match="count"):
        fl.batch(WithCell())(XS)
