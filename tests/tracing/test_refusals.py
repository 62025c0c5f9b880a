"""What is refused, and the words that say what to write instead."""

from __future__ import annotations

import pytest

import foldloom as fl
from tests.tracing.plain import vector, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


def test_a_list_that_the_function_changes_is_refused() -> None:
    with pytest.raises(fl.errors.ArgumentError, match=r"xs = list\(xs\)"):
        fl.batch(lambda xs: xs.pop() * 2)([vectors(2)])
    with pytest.raises(fl.errors.ArgumentError, match=r"xs = list\(xs\)"):
        fl.batch(lambda xs: xs.update(y=xs["x"] * 2))([{"x": vector(3)}])
