"""The checkpoints of one trainer: writing, reading and dropping them (see `checkpoints` for their format)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from headway.core.errors import HeadwayError
from headway.core.storage import disk_full, is_full, no_room
from headway.trainer import checkpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_STATE = "trainer.pt"


@dataclass(slots=True)
class Keeping:
    """Where checkpoints are, and which stay."""

    directory: Path
    newest: int  # that stay
    every_steps: int  # checkpoints of a multiple of this stay too, 0 for none

    def write(
        self,
        step: int,
        lineage: int,
        facts: Mapping[str, Any],
        write_policy: Callable[[Path], None],
        state: Mapping[str, Any],
        num_bytes: int,
    ) -> str:
        """Write a checkpoint, whole or not at all; return its path. Callable from any thread.

        Args:
            step: optimizer steps applied.
            lineage: the life whose steps these are.
            facts: JSON values for the record.
            write_policy: writes the weights into a directory.
            state: everything else, which `read` returns.
            num_bytes: about what it takes, for the message when there is no room.

        Raises DiskFullError when there is no room for it, HeadwayError when it cannot be written otherwise.
        """
        path = checkpoints.checkpoint_path(self.directory, step)
        try:
            with checkpoints.writing(self.directory, step, facts, lineage=lineage) as staging:
                write_policy(staging)
                torch.save(state, staging / _STATE)
        except (OSError, RuntimeError, SafetensorError) as error:  # torch does not say "disk full"
            full = error if is_full(error) else no_room(self.directory, num_bytes)
            if full is not None:
                raise disk_full(path, num_bytes, full) from error
            rule = f"the checkpoint {path} must be written"
            remedy = "Mend that, then go on with `headway resume`"
            raise HeadwayError(rule, value=str(error).split("\n")[0], remedy=remedy) from error
        return str(path)

    def read(self, path: Path, load_policy: Callable[[Path], None]) -> dict[str, Any]:
        """Load the weights of a checkpoint and return its state.

        Raises HeadwayError when it is incomplete or damaged, and whatever `load_policy` raises.
        """
        checkpoints.read_checkpoint(path, hashes=True)
        load_policy(path)
        return torch.load(path / _STATE, weights_only=True)

    def retain(self, step: int, also: Collection[int]) -> None:
        """Drop checkpoints beyond the newest few up to `step`, and those of a branch that was lost.

        Milestones stay, and those of the steps `also`.
        """
        checkpoints.retain(self.directory, step, self.newest, every=self.every_steps, also=also)

    def discard_after(self, step: int) -> None:
        """Remove the checkpoints of steps that are lost because the run goes on from `step`."""
        checkpoints.discard_after(self.directory, step)
