"""What a worker process is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.config.compose import Config

Role = Literal["generator", "trainer", "environment"]


@dataclass(frozen=True, slots=True)
class Job:
    """One worker's part in a run."""

    role: Role
    name: str
    config: Config
    run_id: str  # labels sandboxes
    run_dir: Path
    model_dir: Path  # resolved and verified
    weights_dir: Path
    lineage: int
    checkpoint: Path | None  # the trainer goes on from it
    threads: int  # CPU threads to begin with
    import_path: tuple[str, ...]  # the driver's sys.path: a hook's module is the same one everywhere
    address: str = ""  # where a generator listens for environment workers (wire.py)
    epoch: int = 0  # of a generator; one more each time that its process is started anew
    generators: tuple[tuple[str, str], ...] = ()  # (replica, address) that an environment worker connects to


def payload_dir(run_dir: Path) -> Path:
    """Return where a run's payloads are."""
    return run_dir / "payloads"


def weights_dir(run_dir: Path) -> Path:
    """Return where versions are handed over when shared memory has no room for them."""
    return run_dir / "weights"


def checkpoint_dir(run_dir: Path) -> Path:
    """Return where a run's checkpoints are."""
    return run_dir / "checkpoints"
