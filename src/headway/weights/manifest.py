"""What a published version's directory holds. No torch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.core.codec import dumps, from_plain
from headway.core.errors import HeadwayError

FORMAT = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One file of a version."""

    name: str  # relative to the manifest
    num_bytes: int
    sha256: str  # hex


@dataclass(frozen=True, slots=True)
class Manifest:
    """A published policy version.

    The weights are `files[0]`, in safetensors. A full version holds Hugging Face names. An adapter version
    holds LoRA factors under PEFT names, and its directory is one that PEFT and vLLM can load.
    """

    format: int
    kind: Literal["adapter", "full"]
    lineage: int
    number: int  # optimizer steps applied
    scaling: float  # alpha / rank of an adapter: weight = base + scaling * B @ A; 1 for full weights
    files: tuple[FileFacts, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes that a replica reads."""
        return sum(file.num_bytes for file in self.files)


def file_facts(path: Path) -> FileFacts:
    """Measure one file."""
    with path.open("rb") as file:
        return FileFacts(path.name, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write a manifest beside the files that it lists."""
    (directory / MANIFEST).write_text(dumps(manifest) + "\n", encoding="utf-8")


def read_manifest(path: Path, *, hashes: bool = False) -> Manifest:
    """Read a manifest and check its files' sizes, and with `hashes` their content.

    Raises HeadwayError when the version is not there, torn, or of another format.
    """
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        found = plain.get("format")
        if found != FORMAT:
            raise HeadwayError(f"published weights {path} must have format {FORMAT}", value=found)
        manifest: Manifest = from_plain(Manifest, plain)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HeadwayError(f"published weights {path} must be readable; {error}") from error
    for file in manifest.files:
        data = path.parent / file.name
        size = data.stat().st_size if data.is_file() else -1
        if size != file.num_bytes:
            raise HeadwayError(
                f"published weights {data} are torn: {file.num_bytes} bytes expected", value=size
            )
        if hashes and file_facts(data).sha256 != file.sha256:
            raise HeadwayError(f"published weights {data} are damaged: their SHA-256 is not the manifest's")
    return manifest
