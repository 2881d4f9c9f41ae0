"""Read a published version as full tensors, whatever form it was published in."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from headway.core.errors import HeadwayError
from headway.weights.manifest import Manifest, read_manifest
from headway.weights.merge import fitting, merged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor


def read_published(path: Path, *, check_hashes: bool = False) -> tuple[Manifest, dict[str, Tensor]]:
    """Return a version's facts and its tensors as they were published: LoRA factors, or full weights.

    Raises HeadwayError for a version that is gone or torn.
    """
    with contextlib.ExitStack() as stack:
        facts, file = _held(stack, path, check_hashes=check_hashes)
        try:
            return facts, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise HeadwayError(f"published weights {path} are damaged: {error}") from error


def _held(stack: contextlib.ExitStack, path: Path, *, check_hashes: bool) -> tuple[Manifest, safe_open]:
    """Open a version, which cannot be pruned until the stack is closed."""
    try:
        held = stack.enter_context(path.open("rb"))
    except OSError as error:
        raise HeadwayError(f"published weights {path} must be there; {error}") from error
    fcntl.flock(held, fcntl.LOCK_SH)
    facts = read_manifest(path, hashes=check_hashes)
    try:
        return facts, stack.enter_context(safe_open(path.parent / facts.files[0].name, framework="pt"))
    except SafetensorError as error:
        raise HeadwayError(f"published weights {path} are damaged: {error}") from error


class WeightReader:
    """Turns manifests into full updated tensors.

    `base` are the weights of the checkpoint that the run began from, under Hugging Face names. An adapter
    is added to them, never to an earlier version: they must not change, so an engine that updates its model
    in place keeps a copy.
    """

    def __init__(self, base: Mapping[str, Tensor], *, check_hashes: bool = False) -> None:
        self._base = base
        self._check_hashes = check_hashes

    def read(self, manifest: str | Path) -> Iterator[tuple[str, Tensor]]:
        """Yield (Hugging Face name, tensor) of every weight that the version may have changed.

        A tensor has its base's shape and dtype; the sum base + scaling * B @ A is taken in float32 or
        wider. The version cannot be pruned until the iterator is exhausted or closed. A tied output layer
        is not named: only the embedding is.

        Raises HeadwayError for a version that is gone or torn, or that does not fit the base.
        """
        path = Path(manifest)
        with contextlib.ExitStack() as stack:
            facts, file = _held(stack, path, check_hashes=self._check_hashes)
            try:
                yield from (
                    self._full(file, path) if facts.kind == "full" else self._adapted(file, facts, path)
                )
            except SafetensorError as error:
                raise HeadwayError(f"published weights {path} are damaged: {error}") from error

    def _full(self, file: safe_open, path: Path) -> Iterator[tuple[str, Tensor]]:
        for name in file.keys():  # noqa: SIM118 - a safetensors file is not a mapping
            tensor = file.get_tensor(name)
            base = fitting(self._base, name, tuple(tensor.shape), path)
            yield name, tensor.to(base.dtype)

    def _adapted(self, file: safe_open, facts: Manifest, path: Path) -> Iterator[tuple[str, Tensor]]:
        return merged(self._base, set(file.keys()), file.get_tensor, facts.scaling, path)
