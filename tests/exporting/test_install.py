"""A fresh environment with the extra `runtime` and no torch answers with an exported model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foldloom import models
from foldloom.exporting.files import export_to

pytest.importorskip("onnxscript", reason="files are written with onnxscript: pip install 'foldloom[export]'")

ROOT = Path(__file__).parents[2]
NO_INDEX = "Could not find a version that satisfies the requirement"


def ran(*command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands of the fresh environment are."""
    folder = tmp_path_factory.mktemp("fresh")
    # Building leaves files beside the sources.
    for name in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "foldloom", folder / "foldloom", ignore=shutil.ignore_patterns("__pycache__"))
    venv.create(folder / "venv", with_pip=False)
    programs = folder / "venv" / "bin"
    pip = [sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet"]
    installed = ran(*pip, "--constraint", folder / "constraints.txt", f"{folder}[runtime]")
    if NO_INDEX in installed.stderr:
        pytest.skip("pip finds no index of packages from here, so there is no fresh environment to try")
    assert installed.returncode == 0, installed.stderr
    return programs


def test_predict(programs: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = models.TreeLSTM(30, 5, 6).eval()
    export_to(model, [tmp_path / "model.onnx"], parts=1)
    trees = [(-1, 3), (-1, (-1, 4), (-1, (-1, 5), (-1, 6)))]
    lines = "\n".join(map(json.dumps, trees))
    answered = ran(programs / "foldloom", "predict", "--model", tmp_path / "model.onnx", input=lines, cwd=tmp_path)
    assert answered.returncode == 0, answered.stderr
    found = [json.loads(line)["result"] for line in answered.stdout.splitlines()]
    np.testing.assert_allclose(found, model.predict(trees), atol=1e-5)


def test_there_is_no_torch_and_what_needs_it_says_so(programs: Path, tmp_path: Path) -> None:
    asked = ran(programs / "python", "-c", "import foldloom; foldloom.batch", cwd=tmp_path)
    assert "foldloom.batch needs torch, which is not installed: pip install 'foldloom[torch]'" in asked.stderr
    asked = ran(programs / "foldloom", "train", cwd=tmp_path)
    assert "without torch there is only `foldloom predict --model FILE`" in asked.stderr
