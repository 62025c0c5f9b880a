"""The page for users runs from top to bottom."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent.parent / "docs" / "export.md"


def test_code_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"the page writes and runs .onnx: pip install {package}")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    # As a file, because expressions of lambdas are read from where they stand.
    (tmp_path / "page.py").write_text("\n".join(blocks))
    names = runpy.run_path(str(tmp_path / "page.py"))
    assert (tmp_path / "model.onnx").exists()
    assert len(names["logits"]) == 3
