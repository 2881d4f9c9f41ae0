"""A run directory with a simulated journal and real checkpoints of a tiny model."""

from __future__ import annotations

import itertools
import json
import random
from array import array

from headway.algorithms.settings import AlgorithmSettings
from headway.config.load import load_config
from headway.config.show import write_config
from headway.core.commands import Row
from headway.core.payload import Payload, PayloadWriter
from headway.core.records import TrainingSample, VersionSpan
from headway.models.load import model_facts
from headway.models.tiny import TinyRecipe, make_tiny
from headway.trainer.local import LocalTrainer
from tests.simulation.journals import simulated_journal

PROMPT, ANSWER = list(b"3+4="), list(b"17")


def tiny_base(path, **changes):
    """A tiny base model without a manifest, as a user's own would be; `changes` go into config.json."""
    make_tiny(path, recipe=TinyRecipe(steps=1))
    (path / "headway_manifest.json").unlink()
    if changes:
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, **changes}))
    return path


def write_journal(path, config, model_dir, num_entries=None):
    """Write the journal of a simulated run of three steps; return its entries."""
    return simulated_journal(
        path, config=config, num_entries=num_entries, model=model_facts(model_dir), code="c0de+"
    )


def make_run(path, base, *overrides, steps=(1, 2, 3), num_entries=None):
    """Make the run and return the trainer after its last step, with a row to ask it about."""
    path.mkdir(parents=True)
    given = ["environment.name=arithmetic", "stop.steps=3", "eval.num_tasks=4", *overrides]
    config = load_config(None, [f"model.path={base}", *given])
    write_config(config, path / "config.toml")
    write_journal(path, config, base, num_entries)
    trainer = LocalTrainer(
        base,
        config.trainer,
        AlgorithmSettings(),
        payload_dir=path / "payloads",
        weights_dir=path / "weights",
        checkpoint_dir=path / "checkpoints",
        keep_checkpoints=9,
    )
    (path / "checkpoints").mkdir(exist_ok=True)
    payloads, names = PayloadWriter(path / "payloads", "p0"), itertools.count()
    rng = random.Random(0)

    def row(advantage):
        ids = [*PROMPT, *ANSWER, *rng.choices(range(48, 58), k=3)]
        mask = [0] * len(PROMPT) + [1] * (len(ids) - len(PROMPT))
        logprobs = [-1.5 * flag for flag in mask]
        spans = [VersionSpan(0, 0, sum(mask))]
        arrays = array("i", ids), array("b", mask), array("f", logprobs)
        name = f"r{next(names)}"
        sample = TrainingSample(*arrays, spans, 1.0)
        return Row(name, "g", payloads.append(Payload(name, "t", [sample], {})), advantage)

    for step in range(1, max(steps, default=0) + 1):
        trainer.step([row(1.0), row(-1.0)])
        if step in steps:
            trainer.save(step)
    return trainer, row(1.0)
