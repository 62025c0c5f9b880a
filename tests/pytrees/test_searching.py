"""`contents`: what can be reached from values, each object once."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

from foldloom.pytrees import contents


class Thing:
    def __init__(self, held: Any) -> None:
        self.held = held


def test_through_containers_and_attributes() -> None:
    inner = Thing("text")
    outer = SimpleNamespace(values=OrderedDict(first=[inner], second={3}))
    found = list(contents([outer]))
    assert any(value is inner for value in found)
    assert not any(isinstance(value, (str, int)) for value in found)
    assert inner not in list(contents([outer], attributes=False))


def test_each_object_once_and_circles_end() -> None:
    circle: list[Any] = []
    circle += [circle, circle]
    assert len(list(contents([circle, circle]))) == 1


def test_classes_and_functions_are_not_entered() -> None:
    def function() -> None: ...

    function.held = [1]  # type: ignore[attr-defined]
    Thing.shared = [2]  # type: ignore[attr-defined]
    try:
        assert list(contents([function, Thing])) == [Thing, function]
    finally:
        del Thing.shared  # type: ignore[attr-defined]


def test_no_more_than_so_many() -> None:
    assert len(list(contents([[[], [], []]], most=2))) == 2
