"""`fl.show`: what is in the page, and the page in a real browser."""

from __future__ import annotations

import json
import re
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from benchmarks.trees import Tree, random_trees
from foldloom import blocks as fb
from foldloom.errors import ArgumentError
from tests.views.browser import Opened, started
from tests.views.programs import TREES, Attention, TreeModel, ragged_sentences, until_small

DOCS = Path(__file__).parent.parent.parent / "docs"

# Okabe and Ito's blue, orange and green: the colours of the first three operations.
BLUE, ORANGE, GREEN = (0, 114, 178), (230, 159, 0), (0, 158, 115)


def data_of(page: fl.Page) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.html, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


# ---- What is in the page.


def test_nodes_and_steps() -> None:
    data = data_of(fl.show(TreeModel(), TREES, scheduler=fl.ByDepth()))
    assert (data["examples"], data["parts"]) == (3, 1)
    assert [(kind["name"], kind["nodes"]) for kind in data["kinds"]] == [
        ("Embedding", 9),
        ("Bilinear", 6),
        ("Linear", 3),
    ]
    assert [(schedule["name"], len(schedule["steps"])) for schedule in data["schedules"]] == [
        ("by depth", 7),
        ("by agenda", 5),
    ]
    for schedule in data["schedules"]:
        for node, step in enumerate(schedule["step"]):
            operands = data["nodes"]["operands"]
            first = sum(data["nodes"]["arity"][:node])
            sources = operands[first : first + data["nodes"]["arity"][node]]
            assert all(schedule["step"][source] < step for source in sources)
    assert all(place.startswith("tests/views/programs.py:") for place in data["places"])


def test_parts_lead_back_to_each_other() -> None:
    data = data_of(fl.show(until_small, [torch.full((8,), 10.0), torch.full((8,), 1.0)]))
    assert data["parts"] > 2
    readers = [n for n, arity in enumerate(data["nodes"]["arity"]) for _ in range(arity)]
    pairs = zip(readers, data["nodes"]["operands"], strict=True)
    assert all(data["nodes"]["example"][reader] == data["nodes"]["example"][source] for reader, source in pairs)


def test_page_of_a_plan_knows_who_reads_whom() -> None:
    recordings = [fl.record(TreeModel(), tree) for tree in TREES]
    from_plan, from_graph = data_of(fl.show(fl.plan(recordings))), data_of(fl.show(recordings))

    def edges(data: Any) -> list[tuple[str, str, int]]:
        names = [data["ops"][op]["name"] for op in data["nodes"]["op"]]
        readers = [n for n, arity in enumerate(data["nodes"]["arity"]) for _ in range(arity)]
        found = [
            (names[reader], names[source], data["nodes"]["example"][reader])
            for reader, source in zip(readers, data["nodes"]["operands"], strict=True)
            if names[source] != "given"
        ]
        return sorted(found)

    assert edges(from_plan) == edges(from_graph)


def test_page_of_a_plan_with_ragged_values() -> None:
    model = Attention()
    planned = fl.plan([fl.record(model, words) for words in ragged_sentences(5)])
    data = data_of(fl.show(planned))
    assert sum(data["nodes"]["arity"]) > 0


def test_page_of_a_compiled_block() -> None:
    model = fb.compile(fb.Map(fb.Scalar("int64") >> nn.Embedding(10, 4)) >> fb.Sum() >> nn.Linear(4, 2))
    assert data_of(fl.show(model, [[1, 2, 3], [4]]))["examples"] == 2


class TreebankModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.leaf, self.merge = fl.cell(nn.Embedding(18_000, 4)), fl.cell(nn.Bilinear(4, 4, 4))

    def forward(self, tree: Tree) -> Any:
        return self.leaf(tree.word) if tree.left is None else self.merge(self(tree.left), self(tree.right))


@pytest.fixture(scope="module")
def treebank_page() -> fl.Page:
    return fl.show(TreebankModel(), random_trees(256))


def test_ten_thousand_nodes_take_less_than_two_megabytes(treebank_page: fl.Page) -> None:
    data = data_of(treebank_page)
    assert sum(kind["nodes"] for kind in data["kinds"]) > 9_500
    assert len(treebank_page.html.encode()) < 2_000_000


def test_nothing_comes_from_elsewhere() -> None:
    page = fl.show(TreeModel(), TREES, scheduler=fl.ByDepth(), title="</script><b>x</b> & co").html
    assert not re.findall(r"https?:|//[a-z]+\.|url\(|@import", page)
    assert "default-src 'none'" in page
    assert "<b>x</b>" not in page
    assert "{{" not in page


def test_saving_opening_and_showing_inline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = fl.show(TreeModel(), TREES, scheduler=fl.ByDepth())
    assert page.save(tmp_path / "page.html").read_text() == page.html
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    page.open()
    path = Path(opened[0].removeprefix("file://"))
    assert path.read_text() == page.html
    path.unlink()
    assert page._repr_html_().startswith("<iframe srcdoc=")
    assert "<script" not in page._repr_html_()
    assert repr(page).startswith("Page of ")


def test_what_it_refuses() -> None:
    with pytest.raises(ArgumentError, match="without examples"):
        fl.show(TreeModel())


# ---- The page in a browser.


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with started() as browser:
        yield browser


@pytest.fixture
def page(driver: Any, tmp_path: Path) -> Iterator[Opened]:
    opened = Opened(
        driver, fl.show(TreeModel(), TREES, scheduler=fl.ByDepth(), title="Trees").save(tmp_path / "page.html")
    )
    assert opened.state("ready") == "yes"
    yield opened
    assert opened.problems() == []


def members(page: Opened, schedule: int, step: int) -> int:
    return int(page.script(f"return data.schedules[{schedule}].step.filter((at) => at === {step}).length"))


def test_pointing_at_a_step_lights_its_nodes_up(page: Opened) -> None:
    for step in (0, 1, 3):
        page.hover_step(0, step)
        assert page.state("step") == str(step)
        assert page.state("lit") == str(members(page, 0, step))
    assert page.text("#details").startswith("step 3: 2 \u00d7 Bilinear")
    assert "tests/views/programs.py:" in page.text("#details")
    page.hover("h1", 5, 5)
    assert page.state("step") == ""
    assert page.state("lit") == "0"


def test_pointing_at_a_node_tells_what_it_is(page: Opened) -> None:
    node = page.script("return data.nodes.op.findIndex((op) => data.ops[op].name === 'Bilinear')")
    page.hover_node(node)
    assert page.state("node") == str(node)
    details = page.text("#details")
    assert details.startswith("Bilinear\nexample 0")
    assert "float32[4], float32[4] → float32[4]" in details
    assert "by depth 1, by agenda 1" in details
    assert page.count("#details button") == 2
    place = page.script(f"return window.foldloom.placeOfNode({node})")
    page.hover("#examples", place["x"], place["y"], click=True)
    page.click("#details button")  # it stays there after a click
    assert "Embedding" in page.text("#details .what")


def test_slider_plays_the_schedule(page: Opened) -> None:
    assert page.text("#now") == "step 6 / 6"
    page.script(
        "const slider = document.getElementById('slider'); slider.value = 2; slider.dispatchEvent(new Event('input'))"
    )
    assert page.text("#now") == "step 2 / 6"
    assert page.state("lit") == str(members(page, 0, 2))
    page.press("\ue014", "#slider")  # arrow right
    assert page.text("#now") == "step 3 / 6"
    page.click("#play")
    page.driver.implicitly_wait(0)
    wait_until(page, "document.getElementById('now').textContent === 'step 6 / 6' && state.playing === null")
    assert page.state("lit") == "0"


def wait_until(page: Opened, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(page.driver, 20, poll_frequency=0.05).until(lambda _: page.script(f"return {condition}"))


def test_schedulers_side_by_side(page: Opened) -> None:
    heads = page.script(
        "return [...document.querySelectorAll('.loom-head')].map((head) => head.innerText.replaceAll('\\n', ' '))"
    )
    assert heads[0].startswith("by depth 7 steps · mean batch 2.6 · 10 rows copied")
    assert heads[1].startswith("by agenda 5 steps · mean batch 3.6 · 13 rows copied")
    assert heads[1].endswith("fewest")
    page.click(".loom:nth-child(2) .loom-head")
    assert page.script("return [...document.querySelectorAll('.loom')].map((loom) => loom.ariaChecked)") == [
        "false",
        "true",
    ]
    assert page.text("#now") == "step 4 / 4"
    assert "5\nsteps" in page.text("#figures") or "steps\n5" in page.text("#figures")
    page.hover_step(1, 4)
    assert page.state("lit") == "3"


def test_keyboard_alone(page: Opened) -> None:
    page.press("s")
    assert page.text("#now") == "step 4 / 4"
    page.press("\ue011")  # home
    assert page.text("#now") == "step 0 / 4"
    page.press("\ue014")  # arrow right
    assert page.text("#now") == "step 1 / 4"
    page.press("\ue014", "#examples")  # the first node, and from there to its reader and back
    first = page.state("node")
    page.press("\ue013", "#examples")
    assert page.state("node") != first
    page.press("\ue015", "#examples")
    assert page.state("node") == first
    page.press("\ue00f", "#examples")  # page down: the next example
    assert "example 1" in page.text("#details")
    page.press("\ue007", "#examples")  # enter enlarges it
    assert page.text("#examples-hint") == "example 1"
    page.press("\ue00c")  # escape
    assert page.text("#examples-hint") == "coloured by the step they ran in"
    page.press("\ue015", '.loom[aria-checked="true"]')  # arrow down: the next scheduler
    assert page.text("#now") == "step 6 / 6"
    assert page.script("return document.activeElement.ariaLabel") == "by depth: 7 steps"
    theme = page.script("return document.documentElement.dataset.theme")
    page.press("t")
    assert page.script("return document.documentElement.dataset.theme") != theme


def test_everything_can_be_reached_with_tab(page: Opened) -> None:
    reached = []
    for _ in range(14):
        page.driver.switch_to.active_element.send_keys("\ue004")
        reached.append(
            page.script(
                "return document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
            )
        )
    assert {"theme", "examples", "loom", "play", "slider"} <= set(reached)


def test_enlarging_an_example(page: Opened) -> None:
    root = page.script("return data.nodes.op.length - 1")
    place = page.script(f"return window.foldloom.placeOfNode({root})")
    page.hover("#examples", place["x"], place["y"], click=True)
    assert page.text("#examples-hint") == "example 2"
    page.click("#back")
    assert page.text("#examples-hint") == "coloured by the step they ran in"


def test_legend_lights_an_operation_up(page: Opened) -> None:
    assert page.script("return [...document.querySelectorAll('#legend li')].map((item) => item.innerText.split('\\n')[0])") == [
        "Embedding", "Bilinear", "Linear",
    ]  # fmt: skip
    page.hover("#legend li:nth-child(2) button", 10, 8)
    assert page.state("lit") == "6"


def test_structure_of_the_picture(page: Opened) -> None:
    """Not pixels: where the panels are, that the bars have their operations' colours and the order of their heights."""
    page.script("setTheme('light')")
    page.hover("h1", 5, 5)
    light = page.picture()
    left, top, right, _ = page.box("#examples-frame")
    loom_left, loom_top, loom_right, _ = page.box(".loom canvas")
    assert right < loom_left
    assert (right - left) > (loom_right - loom_left) > 300
    boxes = [page.script(f"return window.foldloom.boxOfStep(0, {step})") for step in range(7)]
    middle = [
        (loom_left + round(box["left"] + box["width"] / 2), loom_top + round(box["top"] + box["height"]) - 2)
        for box in boxes
    ]
    assert [light.pixel(*place) for place in middle] == [BLUE, ORANGE, GREEN, ORANGE, ORANGE, GREEN, GREEN]
    assert sorted(boxes, key=lambda box: -box["height"])[:2] == boxes[:2]
    # Nodes of seven steps have seven colours, none of which is the background's.
    places = page.script(
        "return [0, 1, 2, 3, 4, 5, 6].map((step) => window.foldloom.placeOfNode(data.schedules[0].step.indexOf(step)))"
    )
    colours = [light.pixel(left + round(place["x"]), top + round(place["y"])) for place in places]
    assert len(set(colours)) == 7
    brightness = [sum(colour) for colour in colours]
    assert brightness == sorted(brightness)
    page.script("setTheme('dark')")
    dark = page.picture()
    assert sum(dark.pixel(4, 4)) < 150 < 600 < sum(light.pixel(4, 4))
    assert [dark.pixel(*place) for place in middle] == [light.pixel(*place) for place in middle]


def test_ten_thousand_nodes_in_a_browser(driver: Any, tmp_path: Path, treebank_page: fl.Page) -> None:
    """Pointing draws what lights up and two pictures; nothing is drawn anew for every node."""
    page = Opened(driver, treebank_page.save(tmp_path / "page.html"))
    page.hover_step(0, page.script("return data.schedules[0].steps.length - 2"))
    assert page.state("lit") == page.script("return String(data.schedules[0].steps.at(-2)[1])")
    drawn = page.script(
        """
        let count = 0;
        const prototype = CanvasRenderingContext2D.prototype, original = prototype.fill;
        prototype.fill = function (...rest) { count++; return original.apply(this, rest); };
        point({ node: data.nodes.op.length - 1 });
        prototype.fill = original;
        return count;
        """
    )
    assert drawn < 50
    assert page.problems() == []


@pytest.mark.parametrize("name", ["sentiment", "tagging", "parsing", "molecules"])
def test_pages_of_the_documentation(name: str, driver: Any) -> None:
    path = DOCS / "views" / f"{name}.html"
    assert f"views/{name}.html" in (DOCS / "views.md").read_text()
    assert path.stat().st_size < 200_000
    assets = DOCS.parent / "foldloom" / "views" / "assets"
    for asset in (*assets.glob("*.js"), *assets.glob("*.css")):
        assert asset.read_text() in path.read_text(), f"{asset.name} has changed: `make views` makes the pages anew"
    page = Opened(driver, path)
    assert page.state("ready") == "yes"
    page.hover_step(0, 1)
    assert int(page.state("lit")) == page.script("return data.schedules[0].steps[1][1]")
    assert page.problems() == []


def test_profile_page(driver: Any, tmp_path: Path) -> None:
    with fl.profile() as profile:
        fl.batch(TreeModel(), stack=True, scheduler=fl.ByDepth())(TREES).sum().backward()
    page = Opened(driver, profile.page("A profile").save(tmp_path / "page.html"))
    assert page.text(".advice h2").lower() == "change first"
    assert profile.advice.text.replace("`", "") in page.text(".advice")
    assert page.count(".time-bar div") == 7
    assert page.count(".times tbody tr") == 3
    page.click("#heights button:nth-child(2)")
    page.hover_step(0, 1)
    assert "time" in page.text("#details")
    assert page.problems() == []


def test_inline_in_a_notebook(driver: Any, tmp_path: Path) -> None:
    path = tmp_path / "notebook.html"
    path.write_text(
        f"<!doctype html><meta charset=utf-8><body>{fl.show(TreeModel(), TREES, scheduler=fl.ByDepth())._repr_html_()}</body>"
    )
    page = Opened(driver, path)
    driver.switch_to.frame(0)
    assert page.state("ready") == "yes"
    driver.switch_to.default_content()
