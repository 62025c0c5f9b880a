"""The pages about blocks: every code block runs, and every block has an example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from foldloom import blocks as fb

FOLDER = Path(__file__).parent.parent.parent / "docs" / "blocks"
SHOWN = (fb.Block, fb.FC, fb.Embedding, fb.FractalNet, fb.ForwardDeclaration)
PAGES = sorted(FOLDER.glob("*.md"))


def code_of(page: Path) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_code_of_pages_runs(page: Path) -> None:
    """All Python blocks of a page, as one program."""
    assert code_of(page)
    exec(compile(code_of(page), str(page), "exec"), {"__name__": "page"})


def test_every_block_has_an_example() -> None:
    shown = "\n".join(map(code_of, PAGES))
    made = {name for name in fb.__all__ if isinstance(value := getattr(fb, name), type) and issubclass(value, SHOWN)}
    assert {name for name in made - {"Block"} if f"fb.{name}(" not in shown} == set()


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
