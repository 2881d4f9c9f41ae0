"""Frames of a simulated run, to the letter, at the sizes that terminals have."""

from pathlib import Path

import pytest

from headway.config.load import load_config
from headway.config.scheduler import scheduler_settings
from headway.core.codec import to_plain
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, SimulatedDriver
from headway.queue.scheduler import Scheduler
from headway.telemetry.header import new_header
from headway.telemetry.live_frame import frame, plain
from headway.telemetry.live_state import LiveState
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.records import Entry


@pytest.fixture(scope="module")
def state():
    """The run in the middle of its seventh step."""
    return fed(lambda state: state.trainer == "training step 7")


@pytest.fixture(scope="module")
def run_that_is_over():
    """The whole run."""
    return fed(lambda state: state.metrics.outcome != "unfinished")


def fed(until):
    config = load_config(None, ["model.path=tiny", "environment.name=python-code", "stop.steps=12"])
    settings = scheduler_settings(config)
    run = SimRun(Scheduler(settings))
    SimulatedDriver(
        run, SimSettings(tool_sigma=1.5, kv_tokens=6000, train_s=3.0, p_sandbox_lost=0.01), seed=3
    ).play()
    header = new_header(config=to_plain(config), seed=0, queue=to_plain(settings))
    metrics = RunMetrics(header)
    state = LiveState(metrics, header)
    for entry in run.entries:
        record = Entry(entry.seq, entry.t, entry.event, tuple(entry.commands), tuple(entry.notes))
        metrics.feed(record)
        state.feed(record)
        if until(state):
            return state
    raise AssertionError("it never was so")


FOLDER = Path(__file__).parent / "live_frames"


@pytest.mark.parametrize(("width", "height"), [(120, 24), (80, 14), (40, 9)])
def test_a_frame(state, width, height):
    shown = plain(frame(state, name="demo", now=state.metrics.now + 1.25, width=width, height=height))
    assert f"{shown}\n" == (FOLDER / f"{width}x{height}.txt").read_text(encoding="utf-8")


def test_a_frame_of_a_run_that_is_over_shows_no_load(run_that_is_over):
    """What is in flight and what the generators say they run would contradict each other."""
    lines = plain(frame(run_that_is_over, name="demo", now=1e6, width=80)).splitlines()
    assert "in flight  0 rollouts" in lines
    assert [line for line in lines if "running" in line] == []
    loads = run_that_is_over.replicas.by_name
    assert any(load.num_running for load in loads.values())
    assert [line.split() for line in lines if line.split()[0] in loads] == [
        [name, "version", str(load.number)] for name, load in loads.items()
    ]
