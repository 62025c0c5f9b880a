"""Builds the site: `make docs`, or `python -m docs.site --output build/site`. A warning is an error.

The pages are those of `docs`, and one for each program of the gallery, which is run to make it. Sphinx gets a copy, in which links to files
that are no pages are text.
"""

from __future__ import annotations

import argparse
import inspect
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

OF_THE_PROJECT = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "reporting.md"}
"""Pages that stand beside the README."""

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
    for name, page in OF_THE_PROJECT.items():
        (source / page).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    write_gallery(source / "gallery")
    for page_file in source.rglob("*.md"):
        page_file.write_text(for_the_site(page_file.read_text(encoding="utf-8")), encoding="utf-8")


def for_the_site(text: str) -> str:
    """A page with its links leading to where things are on the site."""
    for name, page in OF_THE_PROJECT.items():
        text = re.sub(rf"\]\((?:\.\./)?{re.escape(name)}(#[^)]*)?\)", rf"]({page}\1)", text)
    text = text.replace("](docs/", "](")
    text = re.sub(r"\[([^\]]*)\]\((views/\w+\.html)\)", r'<a href="\2">\1</a>', text)
    # What is a file of the sources is named.
    return re.sub(
        r"\[([^\]]*)\]\((?:(?:\.\./)*(?:foldloom|benchmarks|examples|tests)(?:/[^)]*)?|journey\.py)\)", r"\1", text
    )


# ---- The gallery.


def write_gallery(folder: Path) -> None:
    folder.mkdir()
    pages = {name: name.replace(" ", "-").lower() for name in GALLERY}
    for name, page in pages.items():
        torch.manual_seed(0)
        text, picture = page_of(name, GALLERY[name])
        (folder / f"{page}.md").write_text(text, encoding="utf-8")
        (folder / f"{page}.svg").write_text(picture, encoding="utf-8")
    head = (DOCS / "gallery.md").read_text(encoding="utf-8")
    entries = "\n".join(f"- [{name}](gallery/{page}.md): {said_by(name)}" for name, page in pages.items())
    contents = "\n".join(f"gallery/{page}" for page in pages.values())
    toctree = f"```{{toctree}}\n:hidden:\n\n{contents}\n```\n"
    (folder.parent / "gallery.md").write_text(f"{head}\n## The programs\n\n{entries}\n\n{toctree}", encoding="utf-8")


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
