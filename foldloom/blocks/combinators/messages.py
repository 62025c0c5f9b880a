"""Protobuf messages as nested dicts and lists."""

from __future__ import annotations

from typing import Any

from foldloom.blocks.combinators.inputs import InputTransform


class SerializedMessageToTree(InputTransform):
    """Parses a serialized protobuf message into nested dicts and lists, for `Record`, `GetItem`, `Map` and `Optional`.

    A repeated field becomes a list, a message a dict, an enum a dict of its name, index and number. An unset field is
    None if it tracks presence, and otherwise its default. Needs protobuf 6 or newer.

    >>> from google.protobuf.wrappers_pb2 import Int64Value
    >>> from foldloom import blocks as fb
    >>> message = Int64Value(value=7).SerializeToString()
    >>> (fb.SerializedMessageToTree(Int64Value) >> fb.GetItem("value") >> fb.Scalar("int64")).eval(message)
    tensor(7)
    """

    def __init__(self, message_type: Any) -> None:
        self._message_type = message_type
        super().__init__(self._tree)

    def _tree(self, serialized: bytes) -> dict[str, Any]:
        try:
            message = self._message_type.FromString(serialized)
        except Exception as error:
            raise self.input_error(
                f"{serialized!r:.60} is not a serialized {self._message_type.DESCRIPTOR.full_name}: {error}"
            ) from error
        return message_to_tree(message)


def message_to_tree(message: Any) -> dict[str, Any]:
    """The fields of a message by name."""
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        values_are_messages = field.message_type.fields_by_name["value"].message_type is not None
        return {key: message_to_tree(item) if values_are_messages else item for key, item in value.items()}
    if field.is_repeated:
        return [_value(item, field) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(value, field)


def _value(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return message_to_tree(value)
    if field.enum_type is not None:
        found = field.enum_type.values_by_number[value]
        return {"name": found.name, "index": found.index, "number": found.number}
    return value
