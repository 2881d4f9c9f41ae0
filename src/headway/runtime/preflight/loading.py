"""Load the model for real, in a process of its own, which gives the memory back: `python -m ... DIRECTORY`.

The process says in one line of JSON what it found. What is read off the files' headers is checked before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import ModelError
from headway.models.cache import check_manifest
from headway.runtime.preflight.findings import Finding, failed, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.runtime.preflight.subject import Subject


def loading(subject: Subject) -> Iterator[Finding]:
    """Every weight is a finite number, and its file is what was fetched."""
    check_manifest(subject.model_dir, hashes=True)
    environment = {
        **os.environ,
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(subject.model_dir)],
        capture_output=True,
        text=True,
        env=environment,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        hint = "; the memory may be too small" if done.returncode == -9 else ""
        yield from failed(
            ModelError(
                f"the model must be loadable{hint}: {lines[-1] if lines else f'exit code {done.returncode}'}",
                value=str(subject.model_dir),
                remedy="Fetch the model again; the files are there and of full length, but cannot be used",
                key="model.path",
            )
        )
        return
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if found["bad"]:
        yield from failed(
            ModelError(
                f"every weight must be a finite number; {len(found['bad'])} tensors hold others",
                value=found["bad"][0],
                remedy="The file was damaged, or training broke the model: fetch it again",
                key="model.path",
            )
        )
        return
    yield ok(f"{found['tensors']} tensors loaded, every weight is finite; torch {found['torch']}")


def main(directory: str) -> int:
    """Load a checkpoint as a generator does, and print what it is like."""
    from headway.models.load import finite_tensors, load_state

    _, state = load_state(Path(directory))
    bad, version = finite_tensors(state)
    print(json.dumps({"bad": bad, "tensors": len(state), "torch": version}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
