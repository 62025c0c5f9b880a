"""What type checkers know of a batched function: its results are a list of what the function returns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import torch

import foldloom as fl


def length(words: list[str], scale: float) -> tuple[int, float]:
    return len(words), scale


reveal_type(fl.batch(length)([["a"]], [1.0]))
reveal_type(fl.batch(length, stack=False)([["a"]], [1.0]))
reveal_type(fl.batch(length, stack=True)([["a"]], [1.0]))
reveal_type(fl.batch(length).function)
reveal_type(fl.batch(torch.nn.Linear(2, 2))([torch.ones(2)]))
fl.batch(length, scheduler="by-depth")
fl.batch(3)
"""

REVEALED = [
    "list[tuple[int, float]]",
    "list[tuple[int, float]]",
    "Any",
    "def (words: list[str], scale: float) -> tuple[int, float]",
    "list[Any]",
]


def test_results_have_the_type_of_the_function(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(program)]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    revealed = [text.replace("builtins.", "") for text in re.findall(r'Revealed type is "(.*)"', found.stdout)]
    assert revealed == REVEALED, found.stdout
    errors = re.findall(r"program.py:(\d+): error", found.stdout)
    assert set(errors) == {"16", "17"}, found.stdout
