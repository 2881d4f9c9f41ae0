"""A user's directory that appears whole or not at all.

It is filled under another name beside its place and renamed. Several processes may do so beside one another.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Generator

_MODEL_FILES = ("config.json", "adapter_config.json")


def check_place(target: Path, *, force: bool) -> None:
    """Raise UserError unless a model may be put at `target`.

    With `force` a model that is there may be replaced, and nothing else may.
    """
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise UserError(
            "the place for the model must be a directory, or nothing yet",
            value=str(target),
            remedy="Name another directory",
        )
    if not any(target.iterdir()):
        return
    if not force:
        raise UserError(
            "the directory must not exist, or be empty",
            value=str(target),
            remedy="Name another one, or replace the model in it with --force",
        )
    if not any((target / name).is_file() for name in _MODEL_FILES):
        raise UserError(
            "--force replaces a directory with a model, and this one holds none",
            value=str(target),
            remedy="Empty it yourself, or name another one",
        )


@contextlib.contextmanager
def staged(target: Path) -> Generator[Path]:
    """Yield a directory to fill; at the end it replaces `target`, or vanishes when the block raises.

    Raises OSError when the place cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield staging
        staging.chmod(0o755)
        if target.is_dir() and any(target.iterdir()):
            aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
            target.rename(aside / "model")
            staging.rename(target)
            shutil.rmtree(aside, ignore_errors=True)
        else:
            staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
