"""Learning curves as TensorBoard reads them: a file of records, each an event of one number, in the format of protocol buffers.

The file is small and written anew after each epoch, like the table and the picture. TensorBoard itself is needed only to look at it:
``tensorboard --logdir runs``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NAME = "tensorboard/events.out.tfevents.foldloom"


def events_of(rows: Sequence[Mapping[str, Any]], counts: Sequence[str]) -> bytes:
    """``rows`` of the learning curve; ``counts`` are columns that say when something was, and are no curves themselves."""
    events = [_field(1, 1, struct.pack("<d", 0.0)) + _field(3, 2, b"brain.Event:2")]
    for row in rows:
        for name, value in row.items():
            if name not in counts:
                events.append(_event(name, float(value), int(row["step"]), float(row["seconds"])))
    return b"".join(map(_record, events))


def _event(name: str, value: float, step: int, seconds: float) -> bytes:
    tag = "loss/train" if name == "loss" else f"dev/{name.replace(' ', '_')}"
    summary = _field(1, 2, tag.encode()) + _field(2, 5, struct.pack("<f", value))
    return _field(1, 1, struct.pack("<d", seconds)) + _field(2, 0, _varint(step)) + _field(5, 2, _field(1, 2, summary))


def _field(number: int, kind: int, data: bytes) -> bytes:
    """Of a message: its number, how it is written, and if it has any length how long it is."""
    return _varint(number << 3 | kind) + (_varint(len(data)) if kind == 2 else b"") + data


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    checksum = _crc(data)
    return struct.pack("<I", ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc(data: bytes) -> int:
    """CRC-32C, which Python's library does not have."""
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum = _TABLE[(checksum ^ byte) & 0xFF] ^ checksum >> 8
    return checksum ^ 0xFFFFFFFF


def _table() -> Iterator[int]:
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        yield number


_TABLE = list(_table())
