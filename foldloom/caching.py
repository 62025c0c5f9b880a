"""Properties that are computed once for each object.

`functools.cached_property` of Python 3.11 holds a lock while it computes, one for all objects of a class. A child of a fork never gets it,
if another thread held it then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801  # as Python's own
    """As Python's own, without the lock: two threads may both compute what they would both find."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: Any, owner: type) -> cached_property[T] | T:
        if instance is None:
            return self
        return instance.__dict__.setdefault(self._name, self._compute(instance))  # type: ignore[no-any-return]
