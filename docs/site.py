"""Builds the site: `make docs`, or `python -m docs.site --output build/site`. A warning is an error.

The pages are those of `docs`, and one for each program of the gallery, which is run to make it. Sphinx gets a copy, in which links to files
that are no pages are text.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch

from benchmarks.gallery.figures import table
from examples.gallery.programs import GALLERY, Program
from foldloom.planning.schedulers import ByAgenda
from foldloom.views.asking import survey_of
from foldloom.views.explaining import explanation_of
from foldloom.views.picture import picture_of

DOCS = Path(__file__).parent
ROOT = DOCS.parent
LEFT_OUT = ("conf.py", "site.py", "static", "views", "peers")
"""What is no page. Pictures and pages of `fl.show` are copied to where links to them lead."""

OF_THE_PROJECT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
}
"""Pages that stand beside `docs`. The front page of the site stands for the README."""

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)]*)?\)")
_TOCTREE = re.compile(r"```\{toctree\}\n(?::.*\n)*\n(.*?)\n```", re.DOTALL)

SHOWN = 8
"""So many examples of a program are run for its page."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site")
    options = parser.parse_args(arguments)
    source = options.output.with_name(f"{options.output.name}-source")
    put_together(source)
    return build(source, options.output)


def build(source: Path, output: Path) -> int:
    """Sphinx's exit code, which is not 0 if it warned."""
    wishes = ["-q", "-W", "--keep-going", "-E", "-b", "html"]
    return subprocess.run([sys.executable, "-m", "sphinx", *wishes, source, output], check=False).returncode


def put_together(source: Path) -> None:
    """What Sphinx reads."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(DOCS, source, ignore=lambda _, names: [n for n in names if n.startswith("__")])
    (source / "extra").mkdir()
    shutil.copytree(DOCS / "views", source / "extra" / "views")
    places = {page: page for page in DOCS.rglob("*.md")}
    places |= {ROOT / name: DOCS / page for name, page in OF_THE_PROJECT.items() if name != "README.md"}
    for page, place in places.items():
        text = for_the_site(page.read_text(encoding="utf-8"), page, place)
        (source / place.relative_to(DOCS)).write_text(text, encoding="utf-8")
    write_gallery(source)
    add_other_pages(source)


def add_other_pages(source: Path) -> None:
    """Pages that the front page has no place for come last."""
    index = source / "index.md"
    text = index.read_text(encoding="utf-8")
    entries = {
        line.partition("<")[2].strip(">") or line for block in _TOCTREE.findall(text) for line in block.split("\n")
    }
    pages = {str(page.relative_to(source).with_suffix("")) for page in source.rglob("*.md")}
    others = sorted(page for page in pages - entries - {"index"} if not page.startswith("gallery/"))
    if others:
        listed = "\n".join(others)
        index.write_text(f"{text}\n```{{toctree}}\n:hidden:\n:caption: More\n\n{listed}\n```\n", encoding="utf-8")


def for_the_site(text: str, page: Path, place: Path) -> str:
    """A page with its links leading to where things are on the site. ``page`` is where it is, ``place`` where it would be in `docs`."""

    def led(match: re.Match[str]) -> str:
        picture, words, target, rest = match.groups()
        if re.match(r"\w+:", target):
            return match[0]
        path = Path(os.path.normpath(page.parent / target))
        if path.parent == ROOT and path.name in OF_THE_PROJECT:
            path = DOCS / OF_THE_PROJECT[path.name]
        way = os.path.relpath(path, place.parent)
        if path.parent == DOCS / "views" and path.suffix == ".html":
            return f'<a href="{way}">{words}</a>'  # it stands on its own: Sphinx knows nothing of it
        is_shown = path.is_relative_to(DOCS) and path.suffix in (".md", ".svg", ".png")
        # What is a file of the sources is named.
        return f"{picture}[{words}]({way}{rest or ''})" if is_shown else words

    parts = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join([part if part.startswith("```") else _LINK.sub(led, part) for part in parts])


# ---- The gallery.


def write_gallery(source: Path) -> None:
    (source / "gallery").mkdir()
    pages = {name: name.replace(" ", "-").lower() for name in GALLERY}
    for name, page in pages.items():
        torch.manual_seed(0)
        text, picture = page_of(name, GALLERY[name])
        (source / "gallery" / f"{page}.md").write_text(text, encoding="utf-8")
        (source / "gallery" / f"{page}.svg").write_text(picture, encoding="utf-8")
    head = (source / "gallery.md").read_text(encoding="utf-8")
    entries = "\n".join(f"- [{name}](gallery/{page}.md): {said_by(name)}" for name, page in pages.items())
    contents = "\n".join(f"gallery/{page}" for page in pages.values())
    toctree = f"```{{toctree}}\n:hidden:\n\n{contents}\n```\n"
    (source / "gallery.md").write_text(f"{head}\n## The programs\n\n{entries}\n\n{toctree}", encoding="utf-8")


def said_by(name: str) -> str:
    """The first line of a module's docstring."""
    return (inspect.getdoc(module_of(name)) or "").partition("\n")[0]


def module_of(name: str) -> ModuleType:
    module = inspect.getmodule(GALLERY[name].made_examples)
    assert module is not None
    return module


def page_of(name: str, program: Program) -> tuple[str, str]:
    """A program, what it does on a few examples, and a picture of how these are batched."""
    module = module_of(name)
    function, examples = program.make(), program.made_examples(SHOWN, 0)
    with torch.set_grad_enabled(program.learns):
        survey = survey_of(function, [examples], ByAgenda())
        told = str(explanation_of(survey)).splitlines()[:4]
    _, _, paper = (inspect.getdoc(module) or "").partition("\n")
    made = type(function).__name__
    text = f"""# {name[0].upper()}{name[1:]}

{said_by(name)}
{paper}

The whole program, as it is written for one example (`{module.__name__.replace(".", "/")}.py`):

```python
{code_of(module)}
```

{SHOWN} of its examples, as one batch:

```python
from {module.__name__} import {made}, made_examples

program = {made}(){"" if program.learns or not isinstance(function, torch.nn.Module) else ".eval()"}
results = fl.batch(program)(made_examples({SHOWN}, 0))
print(fl.explain(program, made_examples({SHOWN}, 0)))
```

```
{chr(10).join(told)}
...
```

![How {SHOWN} examples are batched]({name.replace(" ", "-").lower()}.svg)

{table([name])}

In brackets what the same written for a batch by hand is; see [the gallery](../gallery.md) for all.
"""
    return text, picture_of(survey)


def code_of(module: ModuleType) -> str:
    """The source without docstring and the line that every module has."""
    source = inspect.getsource(module)
    _, _, code = source.partition('"""\n')
    return code.replace("from __future__ import annotations\n", "").strip()


if __name__ == "__main__":
    sys.exit(main())
