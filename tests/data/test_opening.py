"""Files that are missing, forbidden, damaged, too large or no text: with every reader a `DataError` with the file's name and the line."""

from __future__ import annotations

import gzip
import io
import os
import threading
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foldloom import data
from foldloom.data import DataError, Limits
from foldloom.data.opening import MIB, opened

READERS: dict[str, Callable[..., data.Reader[Any]]] = {
    "trees": data.TreeReader,
    "sentiment": data.SentimentReader,
    "conllu": data.ConlluReader,
    "tagged": data.TaggedReader,
    "smiles": data.MoleculeReader,
    "table": lambda source, **settings: data.MoleculeReader(source, targets=["y"], **settings),
    "json": data.JsonReader,
    "python": data.PythonReader,
    "expressions": data.ExpressionReader,
    "arithmetic": data.ArithmeticReader,
}
every_reader = pytest.mark.parametrize("reader", READERS)

GOOD = {
    "trees": "(S (NP we))",
    "sentiment": "(3 (2 a) (4 joy))",
    "conllu": "1\tShe\tshe\tPRON\t_\t_\t0\troot\t_\t_\n",
    "tagged": "the|DET dog|NOUN",
    "smiles": "CCO",
    "table": "CCO,1.5",
    "json": '{"a": 1}',
    "python": "x = a + 1",
    "expressions": "x = a + 1",
    "arithmetic": "( - ( 1 10 ) )",
}


def text_of(reader: str, *pieces: str) -> str:
    return "".join(f"{piece}\n" for piece in (["smiles,y"] if reader == "table" else []) + list(pieces))


def zipped(text: bytes) -> bytes:
    return gzip.compress(text)


def refused(reader: str, path: Path, **settings: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        list(READERS[reader](path, **settings))
    error = caught.value
    assert error.source == str(path)
    assert "\n" not in str(error)
    assert len(str(error)) < 600
    return error


@every_reader
def test_files_that_cannot_be_opened(reader: str, tmp_path: Path) -> None:
    assert "there is none" in str(refused(reader, tmp_path / "missing"))
    assert "there is none" in str(refused(reader, tmp_path / "missing.gz"))
    if reader not in ("python", "expressions"):  # they read folders
        assert "not a folder" in str(refused(reader, tmp_path))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "Too many levels of symbolic links" in str(refused(reader, tmp_path / "loop"))
    (tmp_path / "file").write_text("")
    assert "Not a directory" in str(refused(reader, tmp_path / "file" / "below"))
    assert "File name too long" in str(refused(reader, tmp_path / ("x" * 300)))
    with pytest.raises(DataError, match="null byte"):
        list(READERS[reader](f"{tmp_path}/a\0b"))
    if os.geteuid() != 0:
        (tmp_path / "forbidden").touch(mode=0)
        assert "Permission denied" in str(refused(reader, tmp_path / "forbidden"))


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda packed: b"",
    "cut short": lambda packed: packed[: len(packed) // 2],
    "without its end": lambda packed: packed[:-4],
    "header alone": lambda packed: packed[:10],
    "half a header": lambda packed: packed[:5],
    "no gzip": lambda packed: b"plain text\n",
    "wrong checksum": lambda packed: packed[:-8] + b"\0" * 8,
    "garbage after it": lambda packed: packed + b"garbage",
    "a bit flipped": lambda packed: packed[:20] + bytes([packed[20] ^ 255]) + packed[21:],
    "of zlib": lambda packed: zlib.compress(b"text"),
}


@every_reader
@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_gzip_files(reader: str, damage: str, tmp_path: Path) -> None:
    text = text_of(reader, *[GOOD[reader]] * 50)
    path = tmp_path / "file.gz"
    path.write_bytes(zipped(text.encode()))
    whole = list(READERS[reader](path))
    assert whole
    path.write_bytes(DAMAGED[damage](path.read_bytes()))
    if damage == "empty" and reader != "table":
        assert list(READERS[reader](path)) in ([], [[]]) or reader == "python"
        return
    error = refused(reader, path)
    assert error.line is not None


@every_reader
def test_lines_that_are_no_text(reader: str, tmp_path: Path) -> None:
    good = text_of(reader, GOOD[reader]).encode()
    bad = (
        GOOD[reader]
        .encode()
        .replace(b"a", b"\xff")
        .replace(b"C", b"\xff")
        .replace(b"e", b"\xff")
        .replace(b"1", b"\xff")
    )
    path = tmp_path / "file"
    path.write_bytes(good + bad + b"\n\n" + text_of(reader, GOOD[reader]).encode().removeprefix(b"smiles,y\n"))
    error = refused(reader, path)
    assert "expected text in UTF-8" in str(error)
    assert error.line == good.count(b"\n") + 1
    loose = READERS[reader](path, strict=False)
    items = list(loose)
    assert loose.skipped == 1
    assert len(items) == (0 if reader in ("python", "expressions") else 2)


@every_reader
@pytest.mark.parametrize("start", [b"\xff\xfe(\0", b"PK\x03\x04", b"\x1f\x8b\x08", b"BZh91", b"\xfd7zXZ\0"])
def test_other_formats_are_named(reader: str, start: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(start + b"...\n")
    assert refused(reader, tmp_path / "file").line == 1


@every_reader
def test_a_byte_order_mark_is_no_text(reader: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(text_of(reader, GOOD[reader]).encode())
    without = len(list(READERS[reader](path)))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(list(READERS[reader](path))) == without == 1


@every_reader
def test_too_large(reader: str, tmp_path: Path) -> None:
    """A line, a file, and what lines make; and limits can be raised."""
    path = tmp_path / "file"
    path.write_text(text_of(reader, *[GOOD[reader]] * 100))
    size = path.stat().st_size
    error = refused(reader, path, limits=Limits(file=size - 1))
    assert "expected a file of at most" in str(error)
    assert "--set file_limit=MIB" in str(error)
    assert list(READERS[reader](path, limits=Limits(file=size)))
    if reader not in ("python", "expressions"):  # of a folder of programs, those that are too large are left out
        assert "expected lines of at most" in str(refused(reader, path, limits=Limits(line=3), strict=False))
    if reader in ("trees", "sentiment", "conllu", "python", "expressions"):
        path.write_text(f"{GOOD[reader].rstrip()}\n" + f" {GOOD[reader].rstrip()}\n" * 100)
        assert "bytes in what begins in line" in str(refused(reader, path, limits=Limits(line=500)))


@cache
def bomb(of: bytes) -> bytes:
    return gzip.compress(of * (8 * MIB // len(of))) * 100


@every_reader
@pytest.mark.parametrize("of", [b"\n", b"a", b" ", b"(", b"1\t"])
def test_bombs(reader: str, of: bytes, tmp_path: Path) -> None:
    """A small file that would unpack to a huge one."""
    path = tmp_path / "bomb.gz"
    path.write_bytes(bomb(of))
    error = refused(reader, path)
    assert error.line is not None
    assert any(word in str(error) for word in ("at most", "times its size", "columns"))


DEEP = {
    "trees": ("(S " * 40_000, "brackets that are open at once"),
    "sentiment": ("(3 " * 40_000, "brackets that are open at once"),
    "json": ("[" * 100_000, "JSON"),
    "python": ("(" * 10_000 + "1" + ")" * 10_000, "Python program"),
    "expressions": ("-" * 50_000 + "x", "Python program"),
    "arithmetic": ("( + ( " * 40_000, "brackets that are open at once"),
}


@pytest.mark.parametrize("reader", DEEP)
def test_deep_nesting(reader: str) -> None:
    text, problem = DEEP[reader]
    with pytest.raises(DataError, match=problem):
        READERS[reader](()).parse(text)
    loose = READERS[reader]([text], strict=False)
    assert list(loose) == []
    assert loose.skipped == 1


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        ("json", '{"a": ' + "9" * 5000 + "}"),
        ("arithmetic", "9" * 5000),
        ("arithmetic", "( * ( 1 " + "9" * 5000 + " ) )"),
        ("arithmetic", "( * ( 999999999999999999 " * 60 + "1" + " ) )" * 60),
        ("arithmetic", "+\t" + "( - ( 1 " * 400 + "1" + " ) )" * 400 + "x"),
        ("expressions", "1 + 0x" + "f" * 10_000),
        ("table", "CCO,1,2,3"),
        ("conllu", "1\tShe\tshe\tPRON\t_\t_\t" + "9" * 5000 + "\troot\t_\t_"),
        ("conllu", "9" * 5000 + "\tShe\tshe\tPRON\t_\t_\t0\troot\t_\t_"),
    ],
)
def test_numbers_that_are_too_long(reader: str, text: str) -> None:
    lines = text_of(reader, text).splitlines(keepends=True)
    with pytest.raises(DataError) as caught:
        list(READERS[reader](lines))
    assert len(str(caught.value)) < 400


def test_pipes(tmp_path: Path) -> None:
    """One that nobody writes to is empty; one that somebody writes to is read."""
    os.mkfifo(tmp_path / "pipe")
    assert list(data.TaggedReader(tmp_path / "pipe")) == []
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "w") as file:
            file.write("a|B\n")

    thread = threading.Thread(target=write)
    thread.start()
    assert len(list(data.TaggedReader(f"/dev/fd/{reading}"))) == 1
    thread.join()
    os.close(reading)


def test_files_that_others_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a|B\n\xff|C\n")
    with (
        (tmp_path / "file").open("rb") as file,
        pytest.raises(DataError, match=r"file, line 2: expected text in UTF-8"),
    ):
        list(data.TaggedReader(file))  # type: ignore[arg-type]
    with (
        (tmp_path / "file").open(encoding="utf-8") as text,
        pytest.raises(DataError, match=r"file, line 1: expected text in"),
    ):
        list(data.TaggedReader(text))
    with pytest.raises(DataError, match="expected lines of text, not int"):
        list(data.TaggedReader([1]))  # type: ignore[list-item]
    with opened(io.StringIO("a\nb\n")) as (name, lines):
        assert (name, list(lines)) == ("input", ["a\n", "b\n"])


def vectors(tmp_path: Path, table: bytes) -> None:
    (tmp_path / "words").write_text("a\nb\n")
    (tmp_path / "table.npy").write_bytes(table)
    data.WordVectors.read(tmp_path / "words", tmp_path / "table.npy")


def saved(array: Any, **settings: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **settings)
    return stream.getvalue()


@pytest.mark.parametrize(
    "table",
    [
        b"",
        b"plain text",
        saved(np.zeros((2, 3)))[:-5],
        saved(np.zeros((2, 3)))[:20],
        saved(np.zeros((3, 3))),
        saved(np.zeros(2)),
        saved(np.array([["a", "b"], ["c", "d"]])),
        saved(np.array([[1, None], [2, 3]], object), allow_pickle=True),
        saved(np.full((2, 3), np.nan)),
        saved(np.zeros((2, 3))).replace(b"(2, 3), }", b"(2,9**9,}"),
        saved(np.zeros((2, 3))).replace(b"(2, 3), }         ", b"(2, 300000000), } "),
        saved(np.zeros((2, 3))).replace(b"False", b"[[[[["),
    ],
)
def test_tables_of_vectors(table: bytes, tmp_path: Path) -> None:
    """Those that are damaged, of another shape, of other things than numbers, or pickles."""
    with pytest.raises(DataError, match=r"table\.npy: expected "):
        vectors(tmp_path, table)
    vectors(tmp_path, saved(np.zeros((2, 3), np.float16)))
