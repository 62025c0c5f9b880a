"""JSON records, one a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from foldloom.data.opening import DEFAULT, Limits, Source
from foldloom.data.reading import Reader
from foldloom.errors import DataError


class JsonReader(Reader[dict[str, Any]]):
    """Objects with at least the fields whose types are given in ``fields``.

    >>> list(JsonReader(['{"text": "good", "stars": 4}'], fields={"text": str, "stars": int}))
    [{'text': 'good', 'stars': 4}]
    """

    def __init__(
        self,
        source: Source = (),
        *,
        fields: Mapping[str, type] | None = None,
        strict: bool = True,
        limits: Limits = DEFAULT,
    ) -> None:
        super().__init__(source, strict=strict, limits=limits)
        self.fields = dict(fields or {})

    def parse(self, text: str) -> dict[str, Any]:
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(f"expected a JSON object on one line: {error.msg} at column {error.colno}") from error
        except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
            raise DataError(f"expected a JSON object that can be read: {error}") from error
        if not isinstance(record, dict):
            raise DataError(f"expected a JSON object, not {type(record).__name__}")
        for name, kind in self.fields.items():
            if not isinstance(record.get(name), kind):
                shown = repr(record[name])[:40] if name in record else "nothing"
                raise DataError(f"expected {kind.__name__} in field {name!r}, not {shown}")
        return record
