"""The pages that name what is in the code: the reference is up to date, and the walks of the design lead somewhere."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import foldloom as fl

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "reference.py"))


def test_the_reference_is_up_to_date(script: dict[str, Any]) -> None:
    for path, text in script["pages"]().items():
        assert path.read_text(encoding="utf-8") == text, "write it anew: python docs/reference.py"


PUBLIC = [f"foldloom.{name}" for name in fl.__all__] + [
    f"foldloom.{module}.{name}"
    for module in ("blocks", "data", "models", "runtime", "tasks", "training")
    for name in importlib.import_module(f"foldloom.{module}").__all__
]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring_with_an_example(name: str, script: dict[str, Any]) -> None:
    module, _, last = name.rpartition(".")
    docstring = script["docstring"](getattr(importlib.import_module(module), last))
    assert docstring
    assert ">>> " in docstring, "an example, which the tests run"


def test_walks_name_functions_that_are_there() -> None:
    """Everything that reads `file.py: function` in docs/design.md."""
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    walks = re.findall(r"`([\w/]+\.py): ([\w.]+)`", page)
    assert len(walks) > 40
    for path, name in walks:
        found = [file for file in (ROOT / "foldloom").rglob("*.py") if file.as_posix().endswith(f"/{path}")]
        assert found, f"there is no {path}"
        for part in name.split("."):
            assert any(re.search(rf"\b(?:def|class) {part}\b", file.read_text(encoding="utf-8")) for file in found), (
                f"there is no {part} in {path}"
            )
