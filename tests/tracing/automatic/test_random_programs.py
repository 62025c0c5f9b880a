"""Automatic cells make no difference to random programs in which what they rely on changes on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldloom.tracing import fast_path
from tests.tracing.automatic.random_programs import Writer, check

pytestmark = pytest.mark.skipif(not fast_path.is_compiled, reason="automatic cells need the compiled parts")


@given(st.data())
def test_values_gradients_and_histories_are_the_same(data: Any) -> None:
    check(Writer(lambda options: data.draw(st.sampled_from(options))).program())
