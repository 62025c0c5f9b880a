"""Automatic cells at the first call, so that short programs have them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foldloom.tracing import fast_path


@pytest.fixture
def captured_at_once() -> Iterator[None]:
    before = fast_path.automatic.capture_from(0)
    yield
    fast_path.automatic.capture_from(before)
