"""Functions of plain data in exported files: they give what Python gives, and can do nothing else."""

from __future__ import annotations

import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, itemgetter, methodcaller
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from foldloom.errors import BlockInputError, ExportedFileError, MissingKeyError
from foldloom.exporting.packing import packed
from foldloom.runtime.limits import Limits, Meter, metered
from foldloom.runtime.portable import NotPortableError, unpacked

VOCABULARY = {"good": 1, "bad": 2}
SUFFIXES = ("ing", "ed")
LIMIT = 3

TEXTS: list[Callable[[Any], Any]] = [
    lambda x: VOCABULARY.get(x.lower(), 0),
    lambda x: x.strip().split(" ") + ["end"],
    lambda x: [x[0], x[-1], x[1:], x[::-1], x[:LIMIT]] if x else None,
    lambda x: x.endswith(SUFFIXES) or (x.isupper() and not x.isdigit()),
    lambda x: {"length": len(x), "letters": sorted(set(x))},
    lambda x: sum([len(x), 1.5]) / 2 + abs(-len(x)) // 2 % 7 - 1,
    lambda x: "%s has %d" % (x, len(x)),  # noqa: UP031
    lambda x: x in VOCABULARY or "oo" in x,
    lambda x: isinstance(x, (str, int)) and not isinstance(x, list | tuple),
    lambda x: 1 < len(x) <= 4 != len(x) + 1,
    lambda x: dict(enumerate(x)),
    lambda x: x.partition("o") + tuple(reversed(x)),
    lambda x: (max(len(x), 2), min(x + "z"), any(x), all([]), round(len(x) / 3, 1)),
    lambda x: {1, 2} | {len(x)} if x else frozenset(),
    lambda x: ord(x[0]) - ord("a") if x else -1,
    lambda x: int(str(len(x)) + "0") * 2 & 7 ^ 1,
    lambda x: x * 2 if x else x + "!",
    lambda x: x.replace("o", "0").title().count("0"),
    lambda x: VOCABULARY.keys() - {"good"},
    len,
    str.split,
    str.upper,
    VOCABULARY.get,
    itemgetter(0, -1),
    methodcaller("split", "o"),
    partial(sorted, reverse=True),
]


@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_of_texts(number: int) -> None:
    function = TEXTS[number]
    exported = unpacked(packed(function))
    assert exported is not function
    for text in ("good", "Foo bar", "walking", "A"):
        expected = function(text)
        found = exported(text)
        assert found == expected
        assert type(found) is type(expected) or isinstance(found, type(expected))


@dataclass
class Token:
    word: str
    head: Any = None

    @property
    def secret(self) -> str:
        raise AssertionError("a property is no field")


Pair = namedtuple("Pair", ["left", "right"])


def test_fields_of_records() -> None:
    get = unpacked(packed(attrgetter("head.word")))
    assert get(Token("a", Token("b"))) == "b"
    assert unpacked(packed(attrgetter("left", "right")))(Pair(1, 2)) == (1, 2)
    with pytest.raises(
        BlockInputError, match=r"Token has no field 'secret': fields are those of dataclasses and named tuples"
    ):
        unpacked(packed(attrgetter("secret")))(Token("a"))
    with pytest.raises(BlockInputError, match="ndarray has no field 'T'"):
        unpacked(packed(attrgetter("T")))(np.ones(2))


def test_of_other_containers() -> None:
    first: Callable[[Any], Any] = lambda x: (x["a"][0], len(x["a"]), x.get("b", 7))  # noqa: E731
    given: Any
    for given in ({"a": np.arange(3)}, OrderedDict(a=[0, 1, 2]), {"a": (0, 1, 2), "b": None}):
        assert unpacked(packed(first))(given) == first(given)
    table: Callable[[Any], Any] = lambda x: x[1, :2] + x[0, 0] * 2  # noqa: E731
    given = np.arange(9).reshape(3, 3)
    np.testing.assert_array_equal(unpacked(packed(table))(given), table(given))


def test_errors_say_what_was_computed_of_what() -> None:
    with pytest.raises(MissingKeyError, match=r"`x\['a'\]` cannot be computed of \{'b': 1\} \(dict\): KeyError: 'a'"):
        unpacked(packed(lambda x: x["a"]))({"b": 1})
    with pytest.raises(BlockInputError, match=r"`x \+ 1` cannot be computed of 'text' \(str\): TypeError: str \+ int"):
        unpacked(packed(lambda x: x + 1))("text")


def test_functions_that_are_more_travel_by_their_names() -> None:
    with pytest.raises(NotPortableError, match="more than an expression over its argument"):
        packed(lambda x: x.encode())
    with pytest.raises(NotPortableError, match="more than an expression"):
        packed(lambda x: [2 * y for y in x])


def test_steps_are_counted() -> None:
    function = unpacked(packed(lambda x: sorted(x + x)))
    meter = Meter(Limits(steps=1000))
    with metered(meter):
        function([3, 1, 2])
    assert 0 < 1000 - meter.left < 100
    with (
        metered(Meter(Limits(steps=1000))),
        pytest.raises(ExportedFileError, match=r"more than 1,000 steps.*Limits\(steps=\.\.\.\)"),
    ):
        function(list(range(2000)))


MODULE = """
import json
from os import system
def own(value): return value
class Holder:
    def method(self): return 1
    @staticmethod
    def static(value): return value
aliased = json.loads
"""


def test_an_allowed_module_gives_what_it_defines_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "allowed_by_the_test", raising=False)
    (tmp_path / "allowed_by_the_test.py").write_text(MODULE)
    for path in ("own", "Holder.method", "Holder.static"):
        assert callable(unpacked({"function": f"allowed_by_the_test:{path}"}, ["allowed_by_the_test"]))
    for path in (
        "system",
        "aliased",
        "json.loads",
        "json",
        "own.__globals__",
        "Holder.__class__",
        "own.__code__",
        "none",
    ):
        with pytest.raises(ExportedFileError, match="which defines no such function itself"):
            unpacked({"function": f"allowed_by_the_test:{path}"}, ["allowed_by_the_test"])
    assert isinstance(sys.modules["allowed_by_the_test"], ModuleType)
