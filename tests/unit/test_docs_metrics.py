"""Every key of a run's summary is documented, and no key is documented that a summary lacks."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from headway.core.codec import to_plain
from headway.core.events import Scored, StepEnded
from headway.matching.roles import SimSettings
from headway.matching.simulate import simulate
from headway.queue.settings import QueueSettings, SchedulerSettings, StopSettings
from headway.telemetry.header import new_header
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.records import Entry
from headway.telemetry.reference import current_page, definition
from headway.trainer.sums import BatchSums

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([^`]+)` \| ([^|]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)
DOCUMENTED = [key for key, _, _ in ROWS]

CLEAN = SimSettings(max_running=16)
FAULTY = replace(CLEAN, p_environment_fails=0.1, p_score_fails=0.1, p_sandbox_lost=0.1)


@pytest.fixture(scope="module", params=[CLEAN, FAULTY], ids=["clean", "faulty"])
def summary(request):
    settings = SchedulerSettings(
        queue=QueueSettings(group_size=4, batch_size=8), stop=StopSettings(steps=4), rollout_timeout_s=30.0
    )
    metrics = RunMetrics(new_header(config={}, seed=1, queue=to_plain(settings)))
    told = BatchSums(
        num_fresh_tokens=1, terms=Counter(correction=1.0, kl_reference=0.1)
    ).metrics() | dict.fromkeys(("grad_norm", "learning_rate", "nonfinite"), 0.0)
    for entry in simulate(settings, request.param, seed=1).entries:
        event = entry.event
        if isinstance(event, StepEnded):
            event = replace(event, metrics=told)
        elif isinstance(event, Scored):
            event = replace(event, metrics={"literal": 1.0})
        metrics.feed(Entry(entry.seq, entry.t, event, tuple(entry.commands), tuple(entry.notes)))
    return metrics.summary()


def test_the_page_is_current():
    assert current_page() == PAGE, "python -m headway.telemetry.reference > docs/metrics.md"


def test_a_key_of_a_summary_can_be_explained():
    assert definition("rl.discard.stale.tokens")[0] == "tokens"
    assert definition("rl.no.such.key") is None


def pattern(documented: str) -> re.Pattern[str]:
    """A name in braces stands for one part of a key."""
    return re.compile(re.sub(r"\\\{\w+\\\}", r"[a-z0-9_]+", re.escape(documented)))


def test_every_key_of_a_summary_is_documented(summary):
    patterns = [pattern(key) for key in DOCUMENTED]
    assert [key for key in summary if not any(p.fullmatch(key) for p in patterns)] == []


def test_every_documented_key_is_in_a_summary(summary):
    assert [key for key in DOCUMENTED if not any(pattern(key).fullmatch(name) for name in summary)] == []


def test_a_key_is_documented_once_with_unit_and_definition():
    assert len(DOCUMENTED) > 80
    assert len(set(DOCUMENTED)) == len(DOCUMENTED)
    assert [key for key, unit, text in ROWS if not unit.strip() or not text.strip()] == []


def test_the_shape_of_a_value_is_the_documented_one(summary):
    shapes = {
        "tails": {"mean", "p50", "p90", "p99", "max"},
        "histogram": {"counts", "mean", "max"},
        "level": {"mean", "max"},
        "course": {"first", "last", "mean", "max"},
    }
    found = {
        key: {name for name, keys in shapes.items() if isinstance(value, dict) and set(value) == keys}
        for key, value in summary.items()
    }
    said = {key: {name for name in shapes if re.search(rf"\b{name}\b", unit)} for key, unit, _ in ROWS}
    assert {key: shape for key, shape in found.items() if shape} == {k: s for k, s in said.items() if s}


def test_every_reason_of_a_discard_is_explained(summary):
    reasons = {
        key.split(".")[2] for key in summary if key.startswith("rl.discard.") and key.endswith("rollouts")
    }
    section = PAGE.partition("## Discards")[2].partition("\n## ")[0]
    assert [reason for reason in sorted(reasons) if f"`{reason}`" not in section] == []
