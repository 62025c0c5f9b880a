from __future__ import annotations

import pytest

from tests.tracing.fibers.rounds import Rounds


@pytest.fixture
def rounds() -> Rounds:
    return Rounds()
