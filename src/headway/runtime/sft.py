"""`headway sft`: read the data, prepare a new run and live it; and `headway resume` of such a run."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headway.config.doubts import high_rate
from headway.config.show import write_config
from headway.config.stages import change_sft, value_of
from headway.core.codec import to_plain
from headway.core.errors import UserError
from headway.models.load import model_facts
from headway.renderers.chat import Renderer
from headway.runtime import directory
from headway.runtime.edits import check_unedited
from headway.runtime.job import checkpoint_dir
from headway.runtime.model import model_directory, say_aside
from headway.runtime.sft_life import SftPrepared, live_sft, planned_steps
from headway.runtime.sft_rows import load_rows, store_rows
from headway.runtime.train import placed, say
from headway.telemetry.supervised import FORMAT, RecordWriter, read_supervised, truncate_torn_line
from headway.trainer.checkpoints import find_checkpoint, read_checkpoint
from headway.trainer.conversations import Conversations, Reading, read_conversations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.config.compose import SftConfig

_FOLDERS = ("payloads", "checkpoints")


def sft(config: SftConfig, *, config_path: Path) -> int:
    """Run a new supervised run to its end; return the exit code.

    Raises UserError for anything that the user can mend, before the run's directory is made.
    """
    if config.sft.learning_rate is None and (doubt := high_rate(config.trainer)) is not None:
        say_aside(f"warning: {doubt.keys[0]}: {doubt.rule}. {doubt.remedy}")
    name, parent = config.run.name or config_path.stem, Path(config.run.dir)
    if not config.run.name:
        name = directory.free_name(parent, name)
    model_dir = model_directory(config)
    config = replace(config, model=placed(config.model))
    train, evaluate = _read(config, model_dir)
    run_dir = directory.create(parent, name, _FOLDERS)
    try:
        return _begin(config, run_dir, model_dir, train, evaluate)
    except Exception as error:
        error.add_note(f"run directory: {run_dir}")
        raise


def _begin(
    config: SftConfig, run_dir: Path, model_dir: Path, train: Conversations, evaluate: Conversations
) -> int:
    with directory.claimed(run_dir):
        say(f"run directory: {run_dir}")
        write_config(config, run_dir / directory.CONFIG)
        for line in _said(config, train, evaluate):
            say(line)
        rows = store_rows(run_dir, train.rows, evaluate.rows)
        planned, record = planned_steps(config, rows), RecordWriter(run_dir)
        record.write(
            "began",
            0.0,
            format=FORMAT,
            code=directory.code_version(),
            config=to_plain(config),
            num_rows=len(rows.train),
            num_eval_rows=len(rows.eval),
            num_tokens=sum(row.num_tokens for row in rows.train),
            num_trained_tokens=sum(row.num_trained_tokens for row in rows.train),
            num_cut=train.num_cut,
            num_skipped=train.num_skipped,
            planned_steps=planned,
        )
        return live_sft(SftPrepared(config, run_dir, model_dir, rows, record, planned, 0.0, 0, None, say))


def resume_sft(run_dir: Path, overrides: Sequence[str] = ()) -> int:
    """Go on with a supervised run, with `key=value` changes of its settings; return the exit code.

    Raises RunDirectoryError when it is still running or nothing of it is left to go on from, ConfigError
    when a setting may not change or not so.
    """
    with directory.claimed(run_dir) as alone:
        killed = directory.last_life(run_dir, alone=alone)
        if killed is not None:
            directory.bury(run_dir, killed)
        truncate_torn_line(run_dir)
        earlier = read_supervised(run_dir)
        path = run_dir / directory.CONFIG
        began, _ = change_sft(path, (), ())
        check_unedited(path, began, earlier.began["config"])
        before, _ = change_sft(path, earlier.changes, ())
        config, changes = change_sft(path, earlier.changes, overrides)
        rows = load_rows(run_dir)
        planned = planned_steps(config, rows)
        checkpoint, damaged = find_checkpoint(checkpoint_dir(run_dir))
        step = int(read_checkpoint(checkpoint)["step"]) if checkpoint is not None else 0
        if earlier.ended is not None and earlier.ended["outcome"] == "complete" and step >= planned:
            done = f"the run {run_dir} is complete after {step} steps"
            if not overrides:
                say(done)
                return 0
            rule = f"{done}, and these changes do not let it go on"
            raise UserError(rule, remedy="It goes on with a higher sft.epochs or sft.steps")
        if step > planned:
            rule = f"the run {run_dir} has {step} steps already, more than the {planned} of these settings"
            raise UserError(rule, remedy="Give a higher sft.epochs or sft.steps")
        model_dir, record = model_directory(config), RecordWriter(run_dir)
        say(f"run directory: {run_dir}")
        for fault in damaged:
            say(f"warning: {fault}")
        say(f"going on from step {step} of {planned}")
        for key, value in changes:
            say(f"{key} = {value!r} from now on (was {value_of(before, key)!r})")
        lineage = len(earlier.resumed) + 1
        plain = [(key, to_plain(value)) for key, value in changes]
        record.write(
            "resumed", earlier.last_s, step=step, lineage=lineage, changes=plain, planned_steps=planned
        )
        return live_sft(
            SftPrepared(
                config, run_dir, model_dir, rows, record, planned, earlier.last_s, lineage, checkpoint, say
            )
        )


def _read(config: SftConfig, model_dir: Path) -> tuple[Conversations, Conversations]:
    """Return the conversations to train on and to evaluate."""
    facts, settings = model_facts(model_dir), config.sft
    if settings.max_tokens > facts.max_context_tokens:
        rule = f"must be at most {facts.max_context_tokens}, the model's longest context"
        remedy = "Use 0 for that"
        raise UserError(rule, value=settings.max_tokens, key="sft.max_tokens", remedy=remedy)
    renderer = Renderer(model_dir)
    most = settings.max_tokens or facts.max_context_tokens
    reading = Reading(settings.train_on, most, settings.too_long, facts.vocab)
    train = read_conversations(Path(settings.data), renderer, reading, key="sft.data")
    if not settings.eval_data:
        return train, Conversations()
    return train, read_conversations(Path(settings.eval_data), renderer, reading, key="sft.eval_data")


def _said(config: SftConfig, train: Conversations, evaluate: Conversations) -> list[str]:
    """Return the lines on what was read; a warning goes to stderr."""
    lines: list[str] = []
    for found, name in ((train, config.sft.data), (evaluate, config.sft.eval_data)):
        if not found.rows:
            continue
        tokens = sum(len(row.sample.token_ids) for row in found.rows)
        trained = sum(row.sample.num_trainable for row in found.rows)
        kind = "trained" if found is train else "measured"
        line = f"{Path(name).name}: {len(found.rows):,} conversations, {tokens:,} tokens, {trained:,} {kind}"
        parts = (
            (found.num_cut, "cut"),
            (found.num_skipped, "too long and left out"),
            (found.num_left_out, "of weight 0 or without tokens left out"),
        )
        lines.append(line + "".join(f"; {num:,} {what}" for num, what in parts if num))
    known = {_digest(row.sample.token_ids.tobytes()) for row in train.rows}
    if shared := sum(_digest(row.sample.token_ids.tobytes()) in known for row in evaluate.rows):
        say_aside(
            f"warning: {shared} of {len(evaluate.rows)} conversations of sft.eval_data are in sft.data too: "
            "their loss does not tell how the model does on new ones"
        )
    return lines


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
