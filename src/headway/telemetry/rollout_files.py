"""Rollouts as JSONL and Parquet files, row by row, in bounded memory."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from headway.core.errors import UserError
from headway.telemetry.rollout_rows import COLUMNS
from headway.telemetry.whole_file import whole_file

STDOUT = "-"
_ROW_GROUP_ROWS = 1024
_ROW_GROUP_TOKENS = 1 << 18  # of a row group, which is what is held in memory


def write_jsonl(rows: Iterable[dict[str, Any]], target: str) -> int:
    """Write one JSON object a line to a file, whole or not at all, or to standard output for `-`.

    Returns the number of rows. Raises UserError when the file cannot be written.
    """
    if target == STDOUT:
        return _lines(rows, sys.stdout)
    with whole_file(Path(target)) as partial, partial.open("w", encoding="ascii") as file:
        return _lines(rows, file)


def write_parquet(rows: Iterable[dict[str, Any]], target: str) -> int:
    """Write a Parquet file, whole or not at all.

    Returns the number of rows. Raises UserError when the file cannot be written or pyarrow is not installed.
    """
    try:
        pa: Any = importlib.import_module("pyarrow")
        pq: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UserError(
            "Parquet files need pyarrow, which is not installed",
            remedy="pip install 'headway[parquet]', or write --jsonl",
        ) from error
    schema = pa.schema([(column.name, _arrow_type(pa, column.kind)) for column in COLUMNS])
    num_rows = 0
    with whole_file(Path(target)) as partial, pq.ParquetWriter(partial, schema, compression="zstd") as writer:
        for batch in _batches(rows):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            num_rows += len(batch)
    return num_rows


def _lines(rows: Iterable[dict[str, Any]], file: TextIO) -> int:
    num_rows = 0
    for row in rows:
        file.write(json.dumps(row, separators=(",", ":"), default=list) + "\n")  # arrays become lists
        num_rows += 1
    return num_rows


def _batches(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    num_tokens = 0
    for row in rows:
        batch.append(_for_arrow(row))
        num_tokens += len(row["token_ids"])
        if len(batch) >= _ROW_GROUP_ROWS or num_tokens >= _ROW_GROUP_TOKENS:
            yield batch
            batch, num_tokens = [], 0
    if batch:
        yield batch


def _for_arrow(row: dict[str, Any]) -> dict[str, Any]:
    found = {name: _encodable(value) for name, value in row.items()}
    found["reward_metrics"] = list(found["reward_metrics"].items())
    found["outcome"] = json.dumps(row["outcome"])
    return found


def _encodable(value: Any) -> Any:
    """Return the value with lone surrogates, which Parquet's UTF-8 lacks, escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {_encodable(key): _encodable(item) for key, item in members.items()}
    return [_encodable(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def _arrow_type(pa: Any, kind: str) -> Any:
    """Return pyarrow's type for a Column's kind, as Parquet tools write it."""
    if kind.startswith("list<"):
        return pa.list_(_arrow_type(pa, kind[len("list<") : -1]))
    if kind.startswith("map<"):
        key, value = kind[len("map<") : -1].split(", ")
        return pa.map_(_arrow_type(pa, key), _arrow_type(pa, value))
    if kind.startswith("struct<"):
        members = [member.split(": ") for member in kind[len("struct<") : -1].split(", ")]
        return pa.struct([(name, _arrow_type(pa, of)) for name, of in members])
    plain = {"string": pa.string, "double": pa.float64, "float": pa.float32, "bool": pa.bool_}
    plain |= {"int64": pa.int64, "int32": pa.int32, "int8": pa.int8}
    return plain[kind]()
