"""Random changes of bytes and of JSON."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

_TOKENS = (
    b"\0",
    b"\xff" * 8,
    b"\x7f" * 4,
    b"{",
    b"}",
    b"[" * 50,
    b'"',
    b"\n",
    b"-1",
    b"9" * 20,
    b"__class__",
    b"nan",
    b"",
)


def changed_bytes(data: bytes, source: random.Random) -> bytes:
    """One to four changes, each at a random place."""
    made = bytearray(data)
    for _ in range(source.randint(1, 4)):
        place = source.randrange(len(made) + 1)
        end = min(len(made), place + source.choice((1, 1, 2, 8, 64, 1000)))
        how = source.randrange(6)
        if how == 0 and place < len(made):
            made[place] ^= 1 << source.randrange(8)
        elif how == 1:
            made[place:end] = source.randbytes(end - place)
        elif how == 2:
            del made[place:end]
        elif how == 3:
            made[place:place] = made[place:end]
        elif how == 4:
            made[place:place] = source.choice(_TOKENS)
        elif source.random() < 0.2:
            del made[place:]
        else:
            made[place:end] = bytes(end - place)
    return bytes(made)


def _deep(source: random.Random) -> Any:
    value: Any = []
    for _ in range(source.choice((50, 200))):
        value = [value]
    return value


ODD_VALUES: tuple[Callable[[random.Random], Any], ...] = (
    lambda source: None,
    lambda source: source.choice((True, False)),
    lambda source: source.choice((0, 1, -1, 2, 7, -(2**63), 2**31, 2**63, 10**9, 10**15, 10**40)),
    lambda source: source.choice((0.5, -0.0, 1e308, float("inf"), float("nan"))),
    lambda source: source.choice(
        ("", "x", "__class__", "os:system", "builtins:exec", "0", "é\u2028\ud800", "a" * 5000)
    ),
    lambda source: [],
    lambda source: {},
    lambda source: [0] * source.choice((1, 3, 2000)),
    lambda source: {"tuple": []},
    _deep,
)


def changed_json(content: Any, source: random.Random, odd_strings: tuple[str, ...] = ()) -> Any:
    """One to three changes, each of a random part: another value, one of another place, one more, one less, or another name."""
    content = [copy.deepcopy(content)]
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        places = list(_places(content))
        owner, key = source.choice(places)
        how = source.randrange(8)
        if how <= 2:
            owner[key] = source.choice(ODD_VALUES)(source)
        elif how == 3 and odd_strings:
            owner[key] = source.choice(odd_strings)
        elif how == 4:
            other, other_key = source.choice(places)
            owner[key] = copy.deepcopy(other[other_key])
        elif how == 5 and owner is not content:
            del owner[key]
        elif how == 6 and isinstance(owner, list):
            owner.insert(key, copy.deepcopy(owner[key]))
        elif how == 6 and isinstance(owner, dict):
            owner[source.choice(("x", "kind", "", "__class__"))] = owner.pop(key)
        else:
            owner[key] = _near(owner[key], source)
    return content[0]


def _places(content: Any) -> Any:
    """Every item of every list and dict, as its owner and its key."""
    waiting = [content]
    while waiting:
        owner = waiting.pop()
        for key, item in list(owner.items()) if isinstance(owner, dict) else list(enumerate(owner)):
            yield owner, key
            if isinstance(item, (dict, list)):
                waiting.append(item)


def _near(value: Any, source: random.Random) -> Any:
    """A value much like this one."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float)):
        return value + source.choice((-2, -1, 1, 2, 1000))
    if isinstance(value, str):
        text = changed_bytes(value.encode("utf-8", "surrogatepass"), source)
        return text.decode("utf-8", "replace")
    if isinstance(value, list):
        return value[::-1] if source.random() < 0.5 else value[: source.randrange(len(value) + 1)]
    return dict(list(value.items())[: source.randrange(len(value) + 1)])
