"""JSON for records: dataclasses and named tuples to plain values and back, driven by their type hints.

Encoding is canonical (sorted keys, shortest float form), so that equal records are equal bytes; the
journal's byte-for-byte replay rests on that. A field whose value equals its default is still written.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]

_SCALARS = frozenset((str, int, float, bool, type(None)))


def to_plain(value: Any) -> Any:
    """Return `value` as dicts, lists and scalars that `json` can write."""
    cls: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
    return value if cls in _SCALARS else _encoder(cls)(value)


def dumps(value: Any) -> str:
    """Return the canonical one-line JSON of `value`.

    Raises ValueError for a number that is not finite: JSON has none.
    """
    plain = to_plain(value)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def encoded(value: Any) -> bytes:
    """Return `dumps(value)` in UTF-8; a lone surrogate, which that lacks, as JSON's own escape."""
    return dumps(value).encode("utf-8", "backslashreplace")


def ordered(plain: Any) -> bytes:
    """Return plain values as `encoded` does, with the keys of tables in the order that they have."""
    text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def finite_only(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers that `dumps` can write, as floats; the others are left out."""
    return {name: float(value) for name, value in numbers.items() if _is_finite(value)}


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond every float
        return False


def from_plain(hint: Any, plain: Any) -> Any:
    """Rebuild a value of type `hint` from what `to_plain` made of it."""
    return _decoder(hint)(plain)


@functools.cache
def _encoder(cls: type[Any]) -> Encode:
    """Return a function that makes values of a class plain; built once per class."""
    if issubclass(cls, (str, int, float)):
        return _identity
    if dataclasses.is_dataclass(cls):
        return _dataclass_encoder(cls)
    if issubclass(cls, Mapping):
        return lambda value: {str(key): to_plain(item) for key, item in value.items()}
    if issubclass(cls, (list, tuple, set, frozenset)):
        return lambda value: [to_plain(item) for item in value]
    raise TypeError(f"cannot encode {cls.__name__}")


def _dataclass_encoder(cls: type[Any]) -> Encode:
    names = _field_names(cls)

    def encode(value: Any) -> Any:
        plain: dict[str, Any] = {}
        for name in names:
            item = getattr(value, name)
            kind: type[Any] = type(item)  # pyright: ignore[reportUnknownVariableType]
            plain[name] = item if kind in _SCALARS else _encoder(kind)(item)
        return plain

    return encode


@functools.cache
def _field_names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def _identity(plain: Any) -> Any:
    return plain


@functools.cache
def _decoder(hint: Any) -> Decode:
    """Return a function that decodes plain values into `hint`; built once per type."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in (Any, object, str, int, bool, type(None)) or origin is Literal or hint is dict:
        return _identity
    if hint is float:
        return float
    if origin in (Union, types.UnionType):
        return _optional_decoder(args)
    if origin in (list, set):
        return _collection_decoder(origin, args[0])
    if origin is tuple:
        return _collection_decoder(tuple, args[0]) if args[1:] == (Ellipsis,) else _fixed_decoder(tuple, args)
    if origin in (dict, Mapping):
        return _dict_decoder(*args)
    if isinstance(hint, type) and hasattr(hint, "_fields"):  # a named tuple
        named = typing.cast("Callable[..., Any]", hint)
        return _fixed_decoder(lambda items: named(*items), tuple(typing.get_type_hints(named).values()))
    if dataclasses.is_dataclass(hint):
        return _dataclass_decoder(typing.cast("type", hint))
    raise TypeError(f"cannot decode into {hint!r}")


def _optional_decoder(members: tuple[Any, ...]) -> Decode:
    """A union decodes its one member that is not None; a union of several is left plain."""
    others = [member for member in members if member is not type(None)]
    inner = _decoder(others[0]) if len(others) == 1 else _identity

    def decode(plain: Any) -> Any:
        return None if plain is None else inner(plain)

    return decode


def _collection_decoder(make: Decode, item: Any) -> Decode:
    inner = _decoder(item)

    def decode(plain: list[Any]) -> Any:
        return make(inner(entry) for entry in plain)

    return decode


def _fixed_decoder(make: Decode, items: tuple[Any, ...]) -> Decode:
    decoders = [_decoder(item) for item in items]

    def decode(plain: list[Any]) -> Any:
        return make(inner(entry) for inner, entry in zip(decoders, plain, strict=True))

    return decode


def _dict_decoder(key: Any, item: Any) -> Decode:
    inner = _decoder(item)
    as_key: Decode = int if key is int else _identity

    def decode(plain: dict[str, Any]) -> Any:
        return {as_key(name): inner(entry) for name, entry in plain.items()}

    return decode


def _dataclass_decoder(cls: type) -> Decode:
    hints = typing.get_type_hints(cls)
    decoders = {name: _decoder(hints[name]) for name in _field_names(cls)}

    def decode(plain: Any) -> Any:
        return cls(**{name: decoders[name](entry) for name, entry in plain.items() if name in decoders})

    return decode
