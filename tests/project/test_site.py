"""The site is built without a warning, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

pytest.importorskip("sphinx", reason="the site is built with what `.[docs]` installs")

from docs import site
from examples.gallery.programs import GALLERY


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, with two examples of each program of the gallery."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "SHOWN", 2)
        site.put_together(folder / "source")
    assert site.build(folder / "source", folder / "html") == 0
    return folder / "html"


def test_no_link_is_broken(built: Path) -> None:
    """Neither between pages nor to pictures and pages of `fl.show`; Sphinx has seen to its own."""
    broken = []
    for page in built.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="([^"#?:]+)(?:[#?][^"]*)?"', page.read_text(encoding="utf-8")):
            if not (page.parent / unquote(link)).exists():
                broken.append(f"{page.relative_to(built)}: {link}")
    assert broken == []


def test_every_program_of_the_gallery_has_a_page(built: Path) -> None:
    pages = [page.read_text(encoding="utf-8") for page in (built / "gallery").glob("*.html")]
    assert len(pages) == len(GALLERY)
    assert all("2 examples, " in page and "made_examples" in page for page in pages)
    assert len(list((built / "_images").glob("*.svg"))) > len(pages)


def test_live_pages_are_embedded(built: Path) -> None:
    assert 'src="views/sentiment.html"' in (built / "views.html").read_text(encoding="utf-8")
    assert "<script" in (built / "views" / "sentiment.html").read_text(encoding="utf-8")


def test_links_lead_to_where_things_are_on_the_site() -> None:
    page = site.DOCS / "blocks" / "page.md"
    text = "[a](../guide.md#cells) [b](../../README.md) [c](../../foldloom/errors.py) [d](../views/x.html) [e](http://e.org)"
    expected = '[a](../guide.md#cells) [b](../index.md) c <a href="../views/x.html">d</a> [e](http://e.org)'
    code = "\n```python\nfs[0](x)\n```\n"
    assert site.for_the_site(text + code, page, page) == expected + code
    changelog = site.for_the_site("[f](docs/guide.md)", site.ROOT / "CHANGELOG.md", site.DOCS / "changelog.md")
    assert changelog == "[f](guide.md)"


def test_pages_without_a_place_come_last(tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text("# Home\n\n```{toctree}\n:hidden:\n\nfirst\nSecond <second>\n```\n")
    for name in ("first", "second", "third"):
        (tmp_path / f"{name}.md").write_text("# Page\n")
    site.add_other_pages(tmp_path)
    assert (tmp_path / "index.md").read_text().endswith(":caption: More\n\nthird\n```\n")
