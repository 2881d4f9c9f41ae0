"""Whether a run's config.toml is still what the run began with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.core.codec import to_plain
from headway.core.errors import RunDirectoryError
from headway.core.schema import is_named, keys_of, sections_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from headway.config.compose import Config, SftConfig


def check_unedited(path: Path, now: Config | SftConfig, began: Mapping[str, Any]) -> None:
    """Raise RunDirectoryError when the config read from `path` is not the one on the run's record.

    A setting that the record does not have is newer than the run, which began with its default.
    """
    words = [
        f"{key} is {value!r} (was {before!r})"
        for section, settings in sections_of(type(now)).items()
        for key, value, before in _differing(type(now), section, settings, to_plain(now)[section], began)
    ]
    if words:
        raise RunDirectoryError(
            f"{path} is not the config that the run began with: {'; '.join(words)}",
            remedy="Undo that; settings change by `headway resume RUN key=value`.",
        )


def _differing(
    schema: type, section: str, settings: type, here: Mapping[str, Any], began: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    keys = keys_of(settings).values()
    defaults = {key.name: to_plain(key.default) for key in keys if not key.is_required}
    was = began.get(section, {})
    pairs = [(section, here, was)]
    if is_named(schema, section):
        pairs = [(f"{section}.{name}", here.get(name), was.get(name)) for name in {**was, **here}]
    for prefix, new, old in pairs:
        if new is None or old is None:  # a named section that was added, or taken out
            yield prefix, new, old
            continue
        for name in {**new, **old}:
            value, before = new.get(name), old.get(name, defaults.get(name))
            if value != before:
                yield f"{prefix}.{name}", value, before
