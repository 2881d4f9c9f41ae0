"""Command lines that no program can be given: words with a NUL, or that cannot be encoded, or too many bytes.

A model may have written them, so they are its own failure, as a shell would tell it, and none of the sandbox.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from headway.core.protocols import ExecResult

MAX_WORD_BYTES = 128 * 1024 - 1  # what Linux takes of one
MAX_BYTES = 1 << 20  # of all; Linux takes a quarter of the stack's limit, mostly 2 MiB
_CANNOT_RUN = 126  # as of shells


def unrunnable(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    *,
    max_word_bytes: int = MAX_WORD_BYTES,
    max_bytes: int = MAX_BYTES,
) -> ExecResult | None:
    """Return how a command ends that cannot be run, None for one that may be."""
    why = _why_not(
        (*argv, cwd, *(f"{name}={value}" for name, value in env.items())), max_word_bytes, max_bytes
    )
    if not why and any("=" in name for name in env):
        why = "the name of a variable holds a ="
    return could_not_run(why) if why else None


def could_not_run(why: str) -> ExecResult:
    """Return how a command ends that could not be run."""
    return ExecResult(_CANNOT_RUN, None, "", f"the command cannot be run: {why}\n", False, "exit", 0.0)


def _why_not(words: Sequence[str], max_word_bytes: int, max_bytes: int) -> str:
    try:
        sizes = [len(os.fsencode(word)) for word in words]
    except UnicodeEncodeError as error:
        return f"it holds a character that cannot be encoded, {error.object[error.start]!r}"
    if any("\0" in word for word in words):
        return "it holds a NUL"
    longest, total = max(sizes, default=0), sum(sizes) + len(sizes)
    if longest > max_word_bytes:
        return f"a word of it has {longest} bytes, and {max_word_bytes} are the most; write it to a file"
    return (
        f"it has {total} bytes, and {max_bytes} are the most; write it to a file" if total > max_bytes else ""
    )
