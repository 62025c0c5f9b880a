"""Values in messages: a few dozen characters of whatever it is.

Python's own ``repr`` walks all of a value before anything is cut off. Of a deeply nested one it overflows the stack, and of one whose parts
stand in many places it takes forever.
"""

from __future__ import annotations

from typing import Any

_PLAIN = (type(None), bool, int, float, complex)
_MOST_ITEMS = 6
_MOST_LEVELS = 4


def shown(value: Any, width: int = 60) -> str:
    """A value as Python would write it, cut off after so many characters.

    >>> shown({"words": ["a", "b"]})
    "{'words': ['a', 'b']}"
    """
    text = _shown(value, width, _MOST_LEVELS)
    return text if len(text) <= width else text[: width - 1] + "…"


def _shown(value: Any, width: int, levels: int) -> str:
    cls = type(value)
    if cls is str or cls is bytes:
        return repr(value[:width])
    if cls is int:
        return repr(value) if value.bit_length() < 1000 else f"an integer of {value.bit_length()} bits"
    if cls in _PLAIN:
        return repr(value)
    if cls in (list, tuple, set, frozenset, dict):
        return _shown_container(value, width, levels)
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return f"{cls.__name__}({_shown_container(value, width, levels)})"
    try:
        return repr(value)[: 2 * width].replace("\n", " ")
    except Exception:  # of the user's own class, and a message is being made
        return f"<{cls.__name__}>"


def _shown_container(value: Any, width: int, levels: int) -> str:
    opening, closing = ("[", "]") if isinstance(value, list) else ("(", ")") if isinstance(value, tuple) else ("{", "}")
    if levels == 0:
        return f"{opening}…{closing}"
    parts: list[str] = []
    for item in value:
        if len(parts) == _MOST_ITEMS or sum(map(len, parts)) > width:
            parts.append("…")
            break
        part = _shown(item, width, levels - 1)
        parts.append(f"{part}: {_shown(value[item], width, levels - 1)}" if isinstance(value, dict) else part)
    comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
    return f"{opening}{', '.join(parts)}{comma}{closing}"
