"""The pages that name what is in the code: the reference is up to date, and the walks of the design lead somewhere."""

from __future__ import annotations

import importlib
import re
import runpy
import sys
from pathlib import Path
from types import FrameType
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


def test_the_drawing_has_each_room() -> None:
    """The tree under "The rooms" in docs/design.md: every package, and every module that stands loose in `foldloom` and `foldloom.tracing`."""
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    drawing = page[page.index("```\nfoldloom/") : page.index("## Import law")]
    package = ROOT / "foldloom"
    folders = [file.parent.name for file in package.rglob("__init__.py") if file.parent != package]
    loose = [file.stem for folder in (package, package / "tracing") for file in folder.glob("[!_]*.py")]
    assert [name for name in folders if not re.search(rf"\b{name}/", drawing)] == []
    assert [name for name in loose if not re.search(rf"\b{name}\b", drawing)] == []


def test_the_journey_takes_the_walks(capsys: pytest.CaptureFixture[str]) -> None:
    """Each function that the four walks of docs/design.md name is called by docs/journey.py; of a method, one that overrides it will do."""
    called: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            called.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        runpy.run_path(str(ROOT / "docs" / "journey.py"), run_name="__main__")
    finally:
        sys.setprofile(before)
    assert "batched and alone agree" in capsys.readouterr().out

    def overrides(file: str, qualified: str, base: Any, method: str) -> bool:
        kind, _, last = qualified.rpartition(".")
        if last != method or not kind.isidentifier():
            return False
        module = ".".join(Path(file).relative_to(ROOT).with_suffix("").parts)
        found = getattr(importlib.import_module(module), kind, None)
        return isinstance(found, type) and issubclass(found, base)

    def is_called(path: Path, name: str) -> bool:
        if any(
            file == str(path) and (qualified == name or qualified.startswith(f"{name}.")) for file, qualified in called
        ):
            return True
        owner, _, method = name.rpartition(".")
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        return bool(owner) and any(
            overrides(file, qualified, getattr(module, owner), method)
            for file, qualified in called
            if file.startswith(f"{ROOT}/foldloom/")
        )

    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    walks = page[page.index("## Four walks") : page.index("## Where to look")].split("\n### ")[1:]
    assert len(walks) == 4
    for walk in walks:
        for path, name in re.findall(r"`([\w/]+\.py): ([\w.]+)`", walk):
            files = [file for file in (ROOT / "foldloom").rglob("*.py") if file.as_posix().endswith(f"/{path}")]
            assert any(is_called(file, name) for file in files), f"the journey does not come by {path}: {name}"


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
