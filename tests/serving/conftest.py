from __future__ import annotations

from tests.tracing.conftest import in_float64, nothing_hangs

__all__ = ["in_float64", "nothing_hangs"]
