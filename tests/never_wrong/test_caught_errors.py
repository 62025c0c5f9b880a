"""Finding 12: an error that a program catches is the example's own, and caught where it is one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foldloom as fl
from tests.never_wrong.checking import check, linear, vectors

TABLE = nn.Embedding(5, 3, dtype=torch.float64)
NUMBERS = [torch.tensor(n) for n in (1, 9, 4, -1)]
WORDS = [torch.tensor(words) for words in ([1, 2], [3, 9], [0], [4, 4, 7])]
MATRICES = [torch.eye(3).double() * scale for scale in (1.0, -1.0, 2.0, 0.0)]
VECTORS = [torch.randn(size, dtype=torch.float64) for size in (3, 4, 3, 1)]
LAYER = linear()


def jitter(matrix: torch.Tensor) -> Any:
    try:
        return torch.linalg.cholesky(matrix * 1)
    except RuntimeError:
        return torch.linalg.cholesky(matrix * matrix + torch.eye(3).double())


def jitter_in_a_loop(matrix: torch.Tensor) -> Any:
    added = 0.0
    while True:
        try:
            return torch.linalg.cholesky(matrix + added * torch.eye(3).double()), added
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            added = added * 10 + 0.3


def inverse(matrix: torch.Tensor) -> Any:
    try:
        return torch.linalg.inv(matrix * 1)
    except RuntimeError:
        return torch.linalg.pinv(matrix * 1)


def solved(matrix: torch.Tensor) -> Any:
    try:
        return torch.linalg.solve(matrix * 1, torch.ones(3).double())
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return torch.zeros(3).double()


def used_much_later(matrix: torch.Tensor) -> Any:
    try:
        factor = torch.linalg.cholesky(matrix * 1)
        ok = True
    except RuntimeError:
        factor, ok = matrix * 2, False
    return factor.sum() * 3, ok


def raised_in_a_function(matrix: torch.Tensor) -> Any:
    def attempt() -> torch.Tensor:
        return torch.linalg.cholesky(matrix * 1) * 2

    try:
        return attempt()
    except RuntimeError as error:
        return type(error).__name__


def suppressed(matrix: torch.Tensor) -> Any:
    result = matrix * 5
    with contextlib.suppress(RuntimeError):
        result = torch.linalg.cholesky(matrix * 1)
    return result


def at_last(matrix: torch.Tensor) -> Any:
    seen = []
    try:
        try:
            seen.append(torch.linalg.cholesky(matrix * 1))
        finally:
            seen.append("done")
    except RuntimeError:
        seen.append("failed")
    else:
        seen.append("fine")
    return seen


MATRIX_PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    f.__name__: f
    for f in (
        jitter,
        jitter_in_a_loop,
        inverse,
        solved,
        used_much_later,
        raised_in_a_function,
        suppressed,
        at_last,
    )
}


@pytest.mark.parametrize(
    "name",
    list(MATRIX_PROGRAMS),
)
def test_matrices_that_cannot_be_factored(name: str) -> None:
    check(MATRIX_PROGRAMS[name], MATRICES)


def test_gradients_of_what_was_caught() -> None:
    matrices = [matrix.clone().requires_grad_() for matrix in MATRICES]
    check(lambda matrix: jitter(matrix + matrix.T), matrices, sources=matrices)


def or_else(call: Callable[[torch.Tensor], Any], kind: type[Exception]) -> Callable[[torch.Tensor], Any]:
    def function(x: torch.Tensor) -> Any:
        try:
            return call(x)
        except kind as error:
            return f"caught {type(error).__name__}"

    return function


LOOKUPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "embedding": or_else(TABLE, IndexError),
    "embedding function": or_else(lambda n: F.embedding(n, TABLE.weight), IndexError),
    "embedding of a value": or_else(lambda n: TABLE(n + 0), IndexError),
    "row by a tensor": or_else(lambda n: TABLE.weight[n], IndexError),
    "row by a list": or_else(lambda n: TABLE.weight[[int(n)]], IndexError),
    "row by a number": or_else(lambda n: TABLE.weight[int(n)], IndexError),
    "index_select": or_else(lambda n: TABLE.weight.index_select(0, n[None]), IndexError),
    "gather": or_else(lambda n: TABLE.weight.gather(0, n.view(1, 1)), RuntimeError),
    "place of a value": or_else(lambda n: (TABLE.weight[0] * 2)[n], IndexError),
    "item of a list": or_else(lambda n: [1, 2, 3][n.item()], IndexError),  # type: ignore[index]
    "key of a dict": or_else(lambda n: {1: "a"}[n.item()], KeyError),  # type: ignore[index]
    "nll_loss": or_else(lambda n: F.nll_loss(TABLE.weight[0] * 2, n), IndexError),
    "cross_entropy": or_else(lambda n: F.cross_entropy(TABLE.weight[:1] * 2, n[None]), IndexError),
    "one_hot": or_else(lambda n: F.one_hot(n, 5), RuntimeError),
    "any error": or_else(TABLE, Exception),
}


@pytest.mark.parametrize(
    "name",
    list(LOOKUPS),
)
def test_indices_out_of_range(name: str) -> None:
    check(LOOKUPS[name], NUMBERS, sources=[TABLE.weight])


def test_words_out_of_range() -> None:
    check(or_else(lambda words: TABLE(words).sum(0), IndexError), WORDS, sources=[TABLE.weight])


SHAPES: dict[str, Callable[[torch.Tensor], Any]] = {
    "linear": or_else(LAYER, RuntimeError),
    "linear of a value": or_else(lambda x: LAYER(x * 2), RuntimeError),
    "sum": or_else(lambda x: x * 2 + torch.ones(3), RuntimeError),
    "product": or_else(lambda x: (x * 2) @ torch.ones(3).double(), RuntimeError),
    "view": or_else(lambda x: (x * 2).view(3, 1), RuntimeError),
    "cat": or_else(lambda x: torch.stack([x * 2, torch.ones(3).double()]), RuntimeError),
    "place": or_else(lambda x: (x * 2)[3], IndexError),
    "item": or_else(lambda x: (x * 2).item(), (RuntimeError, ValueError)),  # type: ignore[arg-type]
    "truth": or_else(lambda x: bool(x * 2), RuntimeError),
    "dtype": or_else(lambda x: LAYER((x * 2).float()), RuntimeError),
    "unpacked": or_else(lambda x: [*(x * 2)][2], IndexError),
    "attribute": or_else(lambda x: (x * 2).nonsense, AttributeError),  # type: ignore[attr-defined]
    "argument": or_else(lambda x: (x * 2).sum(nonsense=1), TypeError),  # type: ignore[call-overload]
    "dimension": or_else(lambda x: (x * 2).sum(5), IndexError),
    "float of many": or_else(lambda x: float(x.detach()[:2] * 2), (RuntimeError, ValueError)),  # type: ignore[arg-type]
    "assert": or_else(lambda x: _asserted(x), AssertionError),
    "raised": or_else(lambda x: _raised(x), ValueError),
    "division": or_else(lambda x: 1 // int((x * 0).sum()), ZeroDivisionError),
}


def _asserted(x: torch.Tensor) -> torch.Tensor:
    assert (x * 2).sum() > 0
    return x * 2


def _raised(x: torch.Tensor) -> torch.Tensor:
    if (x * 2).sum() > 0:
        raise ValueError("positive")
    return x * 2


@pytest.mark.parametrize(
    "name",
    list(SHAPES),
)
def test_shapes_and_types_that_do_not_fit(name: str) -> None:
    check(SHAPES[name], VECTORS)


def test_a_cell_that_fails_for_one_example() -> None:
    cell = fl.cell(nn.Embedding(5, 3, dtype=torch.float64))
    check(or_else(cell, Exception), [torch.tensor(n) for n in (1, 4, 0)])

    def function(n: int) -> Any:
        try:
            return cell(n)
        except IndexError:
            return "caught"

    check(function, [1, 9, 2])


def test_an_error_that_is_not_caught_names_its_example_and_line() -> None:
    def function(matrix: torch.Tensor) -> Any:
        return torch.linalg.cholesky(matrix * 1)

    with pytest.raises(Exception, match=r"example 1(.|\n)*test_caught_errors\.py:\d+"):
        fl.batch(function)(MATRICES)


def test_an_error_that_is_not_caught_has_its_type() -> None:
    """One by one this is an IndexError, and who calls the batch may catch it as one."""
    with pytest.raises(IndexError):
        fl.batch(lambda n: TABLE(n) * 2)(NUMBERS)
    with pytest.raises(RuntimeError):
        fl.batch(lambda x: LAYER(x * 2))(VECTORS)
    with pytest.raises(torch.linalg.LinAlgError):  # type: ignore[attr-defined]
        fl.batch(lambda x: torch.linalg.cholesky(x * 1))(MATRICES)


def test_anomaly_of_nan_is_found() -> None:
    """What a program asserts about values is asserted about its own."""

    def function(x: torch.Tensor) -> str:
        try:
            if torch.isnan((x * 2).sqrt()).any():
                raise FloatingPointError("nan")
        except FloatingPointError:
            return "nan"
        return "fine"

    check(function, vectors(4))


def test_a_try_around_a_batch_makes_nothing_wait() -> None:
    """An error that leaves the batch may be caught outside: nobody in it has to wait."""
    cell = fl.cell(lambda x: x * 2)
    with fl.profile() as profile:
        try:
            fl.batch(lambda x: cell(cell(x)))(VECTORS)
            with fl.batching():
                [cell(cell(x)) for x in VECTORS]
        except IndexError:
            raise
    assert all(run.part.demand is None for run in profile.runs)


def test_examples_that_stand_in_a_try_share_their_steps() -> None:
    matrices = [torch.eye(3).double() * scale for scale in range(1, 9)]
    with fl.profile() as profile:
        fl.batch(jitter)(matrices)
    assert sum(len(run.plan.steps) for run in profile.runs) == 2


def test_an_inner_batch_in_a_try() -> None:
    def function(scale: float) -> Any:
        try:
            return fl.batch(lambda matrix: torch.linalg.cholesky(matrix * scale))([torch.eye(2), 2 * torch.eye(2)])
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return "failed"

    check(function, [1.0, -1.0, 3.0])


def test_in_batching() -> None:
    with fl.batching():
        results = [jitter(fl.lift(matrix)) for matrix in MATRICES]
    for result, expected in zip(results, map(jitter, MATRICES), strict=True):
        torch.testing.assert_close(result * 1, expected)


def test_the_message_names_the_example_that_fails_whoever_took_turns() -> None:
    """Examples that wait for different things do not come in order."""

    def function(n: int) -> Any:
        x = torch.ones(2, dtype=torch.float64) * n
        if n % 2:
            x = x * float(x.sum())
        return TABLE(torch.tensor(n)) + x.sum()

    with pytest.raises(fl.errors.CellError, match=r"example 5.*index 9"):
        fl.batch(function)([1, 2, 3, 4, 0, 9])
