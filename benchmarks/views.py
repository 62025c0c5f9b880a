"""How long a page of 256 trees takes to make, and to answer in the browser: ``python -m benchmarks views``."""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import foldloom as fl
from benchmarks.trees import Tree, random_trees, read_treebank
from foldloom.models.trees.tree_lstm import Leaf, Merge

# Each is done in the page, and timed until the frame after it has been painted.
INTERACTIONS = {
    "point at a step": "point({ step: number % schedule().steps.length })",
    "point at a node": "point({ node: data.nodes.op.length - 1 - number * 37 })",
    "point at nothing": "point({ step: 0 }); point({})",
    "move the slider": "moveTo(number % schedule().steps.length)",
    "switch schedulers": "choose(state.schedule + 1)",
    "enlarge an example": "enlarge(number)",
    "back to all": "enlarge(null)",
    "light and dark": "setTheme(isDark() ? 'light' : 'dark')",
}
TIMED = """
const [action, rounds, done] = arguments;
const run = new Function("number", action), times = [];
const round = (number) => {
  if (number === rounds) { done(times); return; }
  requestAnimationFrame(() => {
    const started = performance.now();
    run(number);
    requestAnimationFrame(() => setTimeout(() => { times.push(performance.now() - started); round(number + 1); }, 0));
  });
};
round(0);
"""


class TreeLSTM(nn.Module):
    def __init__(self, words: int, size: int = 150) -> None:
        super().__init__()
        self.leaf, self.merge = fl.cell(Leaf(words, 2 * size, size)), fl.cell(Merge(size))

    def forward(self, tree: Tree) -> Any:
        if tree.left is None:
            return self.leaf(tree.word)
        return self.merge(self(tree.left), self(tree.right))


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("views", help=__doc__)
    command.add_argument(
        "--sst", type=Path, metavar="FILE", help="a treebank in bracket notation; made-up trees without"
    )
    command.add_argument("--trees", type=int, default=256)
    command.add_argument("--rounds", type=int, default=15)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    trees, words = (random_trees(options.trees), 18_000) if options.sst is None else read_treebank(options.sst)
    trees, model = trees[: options.trees], TreeLSTM(words)
    print(f"{len(trees)} trees, {sum(1 for tree in trees for _ in tree):,} nodes")
    seconds: list[float] = []
    for _ in range(options.rounds):
        start = time.perf_counter()
        page = fl.show(model, trees)
        seconds.append(time.perf_counter() - start)
    print(
        f"made in {statistics.median(seconds):.2f} s (first {seconds[0]:.2f} s), {len(page.html.encode()) / 1e6:.2f} MB"
    )
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        print("no browser here: install chromium and chromium-driver to time it there")
        return
    with _opened(page) as driver:
        print(f"{'in the browser':<20} {'median':>9} {'longest':>9}")
        for name, action in INTERACTIONS.items():
            times = driver.execute_async_script(TIMED, action, options.rounds)
            print(f"{name:<20} {statistics.median(times):>6.0f} ms {max(times):>6.0f} ms")


@contextmanager
def _opened(page: fl.Page) -> Iterator[Any]:
    from selenium import webdriver

    chrome = webdriver.ChromeOptions()
    chrome.binary_location = shutil.which("chromium") or ""
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1600,1000"):
        chrome.add_argument(f"--{argument}")
    driver = webdriver.Chrome(options=chrome, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        driver.set_script_timeout(120)
        with tempfile.TemporaryDirectory() as folder:
            driver.get(page.save(Path(folder) / "page.html").as_uri())
            yield driver
    finally:
        driver.quit()
