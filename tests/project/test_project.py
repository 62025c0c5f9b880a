"""Promises about the project itself."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import foldloom as fl

ROOT = Path(__file__).parents[2]


def test_public_names() -> None:
    assert {name for name in dir(fl) if not name.startswith("_")} - set(fl.__all__) <= (
        # Submodules are there because Python puts them there, as soon as they are loaded.
        {
            "blocks",
            "caching",
            "cli",
            "data",
            "execution",
            "exporting",
            "graph",
            "lazy_imports",
            "models",
            "planning",
            "pytrees",
            "runtime",
            "serving",
            "streaming",
            "tasks",
            "torch_private",
            "tracing",
            "training",
            "views",
        }
    )
    assert all(getattr(fl, name) is not None for name in fl.__all__)


PUBLIC = ["foldloom", *[f"foldloom.{name}" for name in ("blocks", "data", "models", "runtime", "tasks", "training")]]


@pytest.mark.parametrize("package", PUBLIC)
def test_no_module_has_the_name_of_something_public(package: str) -> None:
    """`foldloom.models.tagger` is a module or a function, and nobody should have to ask which."""
    module = importlib.import_module(package)
    names = {name for name in module.__all__ if not inspect.ismodule(getattr(module, name))}
    assert not names & {path.stem for path in (ROOT / "foldloom").rglob("*.py")}


MODULES = [module.name for module in pkgutil.walk_packages(fl.__path__, "foldloom.")]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_run(name: str) -> None:
    failures, _ = doctest.testmod(importlib.import_module(name))
    assert failures == 0


@pytest.mark.parametrize(
    "path",
    [
        "README.md",
        "docs/index.md",
        "docs/started.md",
        "docs/which-way.md",
        "docs/vmap.md",
        "docs/from-padding.md",
        "docs/from-dynet.md",
        "docs/recipes.md",
        "docs/faq.md",
        "docs/guide.md",
        "docs/data.md",
        "docs/extending.md",
        "docs/models.md",
        "docs/serving.md",
        "docs/training.md",
        "docs/views.md",
    ],
)
def test_code_blocks_run(path: str) -> None:
    """All Python blocks of a page, as one program."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)
    assert blocks, f"{path} has no code to run"
    exec(compile("\n".join(blocks), path, "exec", dont_inherit=True), {"__name__": "page"})


def test_graph_and_plan_need_no_torch() -> None:
    """What records and plans must be usable where torch is not installed."""
    for name in (
        "graph/graph",
        "graph/recording",
        "planning/plans",
        "planning/placement",
        "errors",
        "planning/schedulers/by_agenda",
    ):
        assert "torch" not in re.findall(
            r"^(?:import|from) (\w+)", (ROOT / f"foldloom/{name}.py").read_text(), re.MULTILINE
        )


def test_hashes_are_of_what_is_pinned() -> None:
    def lines(name: str) -> list[str]:
        return [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith(("#", " "))]

    pinned, hashed = lines("constraints.txt"), [line.removesuffix(" \\") for line in lines("hashes.txt")]
    assert sorted(hashed) == sorted(line for line in pinned if not line.startswith("torch=="))
    every = re.findall(
        r"^(\S+==\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", (ROOT / "hashes.txt").read_text(), re.M
    )
    assert [name for name, _ in every] == hashed
