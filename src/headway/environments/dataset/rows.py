"""Rows of a data set, read on demand: JSONL and Parquet files, folders that `datasets` saved, the Hub.

What is read stays in memory in its own compact form, so that a file that changes meanwhile changes no task of
a worker that runs. A row is a dict of plain values; `place` says where it is, for messages.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from headway.core.errors import EnvironmentSetupError, UserError
from headway.core.json_lines import json_object, text_lines
from headway.core.near import did_you_mean, nearest
from headway.environments.dataset.settings import HUB

MAX_PROBLEMS = 10  # told at once
_JSON = (".jsonl", ".ndjson", ".json")
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz")
_KEY = "environment.args."


class Rows(Protocol):
    """Rows by position."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def row(self, index: int) -> dict[str, Any]:
        """Return a row; raises UserError, with its place, where it cannot be read."""
        ...

    def place(self, index: int) -> str:
        """Return where a row is."""
        ...


class JsonRows:
    """Lines of a JSONL file."""

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._lines = list(text_lines(path, key))

    def __len__(self) -> int:
        return len(self._lines)

    def row(self, index: int) -> dict[str, Any]:
        """Return the object of a line."""
        try:
            return json_object(self._lines[index][1])
        except UserError as error:
            error.where = self.place(index)
            raise

    def place(self, index: int) -> str:
        """Return FILE:LINE."""
        return f"{self._path}:{self._lines[index][0]}"


class TableRows:
    """Rows of something that is indexed by number: an Arrow table, or a dataset of `datasets`."""

    def __init__(self, name: str, size: int, take: Callable[[int], dict[str, Any]]) -> None:
        self._name = name
        self._size = size
        self._take = take

    def __len__(self) -> int:
        return self._size

    def row(self, index: int) -> dict[str, Any]:
        """Return a row."""
        return self._take(index)

    def place(self, index: int) -> str:
        """Return NAME, row NUMBER, counted from 0."""
        return f"{self._name}, row {index}"


def read_rows(data: str, split: str, default_split: str, hub_config: str, revision: str, key: str) -> Rows:
    """Return the rows that a name means.

    Args:
        data: as DatasetSettings.data says.
        split: of a dataset with several; "" for `default_split`, where there is one.
        default_split: such as "train".
        hub_config: of a dataset on the Hub.
        revision: likewise.
        key: of [environment.args] that names it.

    Raises EnvironmentSetupError, or UserError for what cannot be read.
    """
    if data.startswith(HUB):
        return _from_hub(data.removeprefix(HUB), split or default_split, hub_config, revision, _KEY + key)
    path = Path(data)
    if path.is_dir():
        return _from_folder(path, split, default_split, _KEY + key)
    if path.suffix in _JSON or (path.suffix != ".parquet" and not path.exists()):
        return JsonRows(path, _KEY + key)
    if path.suffix == ".parquet":
        if not path.is_file():
            list(text_lines(path, _KEY + key))  # says why not
        return _from_parquet(path, [path], _KEY + key)
    if path.suffix in _PACKED:
        rule = "the data must be unpacked: a .jsonl or .parquet file, or a folder of one of these forms"
        raise EnvironmentSetupError(rule, value=data, remedy="Unpack it, with gunzip say", key=_KEY + key)
    raise EnvironmentSetupError(
        "the data must be a .jsonl or .parquet file, a folder of one of these forms, or hf:OWNER/NAME",
        value=data,
        remedy="Convert it: CSV with `python -c \"import pandas; pandas.read_csv('a.csv').to_json('a.jsonl', "
        "orient='records', lines=True)\"`",
        key=_KEY + key,
    )


def _from_parquet(name: Path, files: list[Path], key: str) -> Rows:
    try:
        pa: Any = import_module("pyarrow")
        pq: Any = import_module("pyarrow.parquet")
    except ImportError:
        raise _missing("pyarrow", "parquet", "Parquet files", key) from None
    try:
        table: Any = pa.concat_tables([pq.read_table(file) for file in files])
    except (OSError, pa.ArrowException) as error:
        rule = f"the Parquet file cannot be read: {' '.join(str(error).split())}"
        raise EnvironmentSetupError(rule, value=str(name), remedy="Write it again", key=key) from None

    def take(index: int) -> dict[str, Any]:
        return table.slice(index, 1).to_pylist()[0]

    return TableRows(str(name), table.num_rows, take)


def _from_folder(path: Path, split: str, default_split: str, key: str) -> Rows:
    if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        datasets = _library(key)
        found = _loaded(lambda: datasets.load_from_disk(str(path)), str(path), key)
        return _one_split(found, str(path), split, default_split, key)
    if files := sorted(path.glob("*.parquet")):
        return _from_parquet(path, files, key)
    raise EnvironmentSetupError(
        "the folder must hold Parquet files, or what save_to_disk of `datasets` wrote",
        value=str(path),
        remedy="Name the file itself, such as data.jsonl",
        key=key,
    )


def _from_hub(name: str, split: str, config: str, revision: str, key: str) -> Rows:
    datasets = _library(key)

    def load() -> Any:
        return datasets.load_dataset(name, config or None, split=split, revision=revision or None)

    found = _loaded(load, HUB + name, key)
    return TableRows(f"{HUB}{name} {split}", len(found), lambda index: dict(found[index]))


def _one_split(found: Any, name: str, split: str, default_split: str, key: str) -> Rows:
    """Return the rows of a Dataset, or of one split of a DatasetDict."""
    if hasattr(found, "keys"):
        names = [str(each) for each in found]
        wanted = split or default_split
        if wanted not in names:
            guess = did_you_mean(nearest(wanted, names))
            raise EnvironmentSetupError(
                f"the dataset has the splits {', '.join(names)}",
                value=wanted,
                remedy=guess or "Name one of these",
                key=key.replace("data", "split"),
            )
        found, name = found[wanted], f"{name} {wanted}"
    elif split:
        raise EnvironmentSetupError(
            "the dataset has no splits", value=split, remedy="Leave it out", key=key.replace("data", "split")
        )
    return TableRows(name, len(found), lambda index: dict(found[index]))


def _library(key: str) -> Any:
    try:
        datasets: Any = import_module("datasets")
    except ImportError:
        raise _missing("datasets", "datasets", "Hugging Face datasets", key) from None
    datasets.disable_progress_bars()
    return datasets


def _loaded(load: Callable[[], Any], name: str, key: str) -> Any:
    try:
        return load()
    except Exception as error:  # the library raises many kinds, for want of network, name, right or split
        raise EnvironmentSetupError(
            f"the dataset cannot be loaded: {type(error).__name__}: {error}",
            value=name,
            remedy="Look at its name, split and hub_config, and whether this machine reaches the Hub",
            key=key,
        ) from error


def _missing(package: str, extra: str, what: str, key: str) -> EnvironmentSetupError:
    remedy = f"pip install 'headway[{extra}]'"
    return EnvironmentSetupError(f"{what} need the package {package}", remedy=remedy, key=key)
