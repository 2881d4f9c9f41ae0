"""JSON for records: dataclasses and named tuples to plain values and back, driven by their type hints.

Encoding is canonical (sorted keys, shortest float form), so that equal records are equal bytes; the
journal's byte-for-byte replay rests on that. A field whose value equals its default is still written.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Return `value` as dicts, lists and scalars that `json` can write."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_plain(getattr(value, name)) for name in _field_names(type(value))}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in typing.cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = typing.cast("list[Any]", value)
        return [to_plain(item) for item in items]
    raise TypeError(f"cannot encode {type(value).__name__}")


def dumps(value: Any) -> str:
    """Return the canonical one-line JSON of `value`."""
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def from_plain(hint: Any, plain: Any) -> Any:
    """Rebuild a value of type `hint` from what `to_plain` made of it."""
    return _decoder(hint)(plain)


@functools.cache
def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def _identity(plain: Any) -> Any:
    return plain


@functools.cache
def _decoder(hint: Any) -> Any:
    """Return a function that decodes plain values into `hint`; built once per type."""
    if hint in (Any, object, str, int, bool, type(None)):
        return _identity
    if hint is float:
        return float
    origin = get_origin(hint)
    if origin is Literal:
        return _identity
    if origin in (Union, types.UnionType):
        members = [member for member in get_args(hint) if member is not type(None)]
        inner = _decoder(members[0]) if len(members) == 1 else _identity
        return lambda plain: None if plain is None else inner(plain)
    if origin is list:
        (item,) = map(_decoder, get_args(hint))
        return lambda plain: [item(entry) for entry in plain]
    if origin is set:
        (item,) = map(_decoder, get_args(hint))
        return lambda plain: {item(entry) for entry in plain}
    if origin is tuple:
        return _tuple_decoder(get_args(hint))
    if origin in (dict, Mapping) or hint is dict:
        return _dict_decoder(get_args(hint))
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        hints = typing.get_type_hints(hint)
        decoders = [_decoder(hints[name]) for name in hint._fields]  # pyright: ignore
        return lambda plain: hint(*(d(entry) for d, entry in zip(decoders, plain, strict=True)))
    if dataclasses.is_dataclass(hint):
        return _dataclass_decoder(typing.cast("type", hint))
    raise TypeError(f"cannot decode into {hint!r}")


def _tuple_decoder(args: tuple[Any, ...]) -> Any:
    if len(args) == 2 and args[1] is Ellipsis:
        item = _decoder(args[0])
        return lambda plain: tuple(item(entry) for entry in plain)
    decoders = [_decoder(arg) for arg in args]
    return lambda plain: tuple(d(entry) for d, entry in zip(decoders, plain, strict=True))


def _dict_decoder(args: tuple[Any, ...]) -> Any:
    if not args:
        return _identity
    value = _decoder(args[1])
    as_key = int if args[0] is int else _identity
    return lambda plain: {as_key(key): value(entry) for key, entry in plain.items()}


def _dataclass_decoder(cls: type) -> Any:
    hints = typing.get_type_hints(cls)
    decoders = {name: _decoder(hints[name]) for name in _field_names(cls)}

    def decode(plain: Any) -> Any:
        return cls(**{name: decoders[name](entry) for name, entry in plain.items() if name in decoders})

    return decode
