"""Pipes that nobody writes to, devices without an end, and folders in the place of files: refused at once, not waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foldloom as fl
from foldloom.data import WordVectors
from foldloom.data.opening import read_regular
from foldloom.errors import FoldloomError
from foldloom.runtime import Model


def words_and(table: Path) -> Any:
    (table.parent / "words").write_text("a\n")
    return WordVectors.read(table.parent / "words", table)


READERS: dict[str, Callable[[Path], Any]] = {"recordings": fl.load, "vectors": words_and, "model": Model}
MADE: dict[str, Callable[[Path], Any]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("reader", READERS)
def test_refused(reader: str, made: str, tmp_path: Path) -> None:
    path = tmp_path / "file.onnx"
    MADE[made](path)
    with pytest.raises(FoldloomError, match=r"file\.onnx"):
        READERS[reader](path)


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(OSError, match="more than the 1,024 that are expected"):
        read_regular(path, 1024)
