"""The trainer of the simulated driver.

Consumes Train, TrainPart, Publish, Checkpoint and Rollback; answers each when its model says so, unless it
died meanwhile. A part of a step that is handed over early takes its rows' share of a whole batch's time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.events import (
    CheckpointDone,
    Event,
    PartEnded,
    RolledBack,
    StepEnded,
    VersionPublished,
    WorkerLost,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.core.commands import Checkpoint, Publish, Rollback, Row, Train, TrainPart
    from headway.matching.simulate import SimRun
    from headway.matching.simulated_rollouts import SimRollouts, Stage


class SimTrainer:
    """The trainer of one simulated life."""

    def __init__(self, stage: Stage, run: SimRun, rollouts: SimRollouts) -> None:
        self._stage, self._run, self._rollouts = stage, run, rollouts
        self._life = 0
        self._free_s = 0.0  # when it is done with the parts that it has
        self._gathered_s = 0.0  # computing of the parts of the step that it has begun

    def train(self, command: Train) -> None:
        """Take a step: what is left of it after the parts that were handed over before."""
        stage, model = self._stage, self._stage.models.trainer
        if stage.happens(stage.faults.p_trainer_dies):
            self._dies()
            return
        rows, life, gathered_s = command.rows, self._life, self._gathered_s
        num_tokens, num_trained, squares = self._size(rows)
        compute_s = model.step_s(len(rows), num_tokens, squares)
        compute_s *= 1.0 - command.num_gathered / len(rows)
        self._gathered_s = 0.0

        def end() -> None:
            if life == self._life:
                if self._run.keeps:
                    self._run.trained[command.step] = [row.rollout for row in rows]
                took_s = gathered_s + compute_s
                stage.feed(
                    StepEnded(
                        command.batch, command.step, took_s, num_tokens, num_trained, gathered_s=gathered_s
                    )
                )

        slower = stage.faults.stall_factor if stage.happens(stage.faults.p_trainer_stalls) else 1.0
        busy_s = max(0.0, self._free_s - stage.now_s)
        stage.at(busy_s + model.load_s + slower * compute_s, end)

    def train_part(self, command: TrainPart) -> None:
        """Compute a part of a step: its rows' share of what a whole batch of such rows takes."""
        stage, model = self._stage, self._stage.models.trainer
        if stage.happens(stage.faults.p_trainer_dies):
            self._dies()
            return
        num, size = len(command.rows), self._run.scheduler.settings.queue.batch_size
        num_tokens, _, squares = self._size(command.rows)
        whole = max(1.0, size / num)
        compute_s = model.step_s(max(num, size), round(num_tokens * whole), squares * whole) / whole
        self._gathered_s += compute_s
        self._free_s = stage.now_s + model.load_s + compute_s
        self._later(model.load_s + compute_s, PartEnded(command.batch, command.part, compute_s, num_tokens))

    def publish(self, command: Publish) -> None:
        """Write a version."""
        took_s = self._stage.models.trainer.publish_s
        event = VersionPublished(command.lineage, command.number, took_s, f"v{command.number}", 1)
        self._later(took_s, event)

    def checkpoint(self, command: Checkpoint) -> None:
        """Save, beside training."""
        life, save_s = self._life, self._stage.models.trainer.save_s

        def saved() -> None:
            if life == self._life:
                if self._run.keeps:
                    self._run.checkpoints.append(command.step)
                self._stage.feed(CheckpointDone(command.step, f"step-{command.step}", save_s))

        self._stage.at(save_s, saved)

    def roll_back(self, command: Rollback) -> None:
        """Load a checkpoint."""
        self._run.roll_back(command.step)
        self._gathered_s = 0.0
        self._later(self._stage.models.trainer.save_s, RolledBack(command.lineage, command.step))

    def end_life(self) -> None:
        """Another process takes its place: what this one was about to answer never comes."""
        self._life += 1

    def _dies(self) -> None:
        stage = self._stage
        self._life += 1
        self._gathered_s = 0.0
        after_s = stage.models.trainer.step_s(1, 1, 1.0) / 2
        stage.later(after_s, WorkerLost("trainer", "trainer", "simulated"))

    def _later(self, delay_s: float, event: Event) -> None:
        """An answer that it gives only if it lives until then."""
        life = self._life
        self._stage.at(delay_s, lambda: self._stage.later(0.0, event) if life == self._life else None)

    def _size(self, rows: Sequence[Row]) -> tuple[int, int, float]:
        """Return the tokens of these rows, those that the loss counts, and the sum of the squares."""
        num_tokens = num_trained = 0
        squares = 0.0
        for row in rows:
            rollout = self._rollouts.known.get(row.rollout)
            if rollout is None:  # of an earlier life
                num_tokens, num_trained, squares = num_tokens + 1, num_trained + 1, squares + 1.0
                continue
            num = rollout.context_tokens
            num_tokens += num
            squares += float(num) * num
            num_trained += sum(span[2] for span in rollout.spans if span[:2] not in row.masked)
        return num_tokens, num_trained, squares
