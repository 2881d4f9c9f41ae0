"""Simulated runs, with faults and kills, through a real journal into the metrics."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headway.core.codec import to_plain
from headway.core.events import Scored, StepEnded
from headway.core.notes import BatchReleased, Ignored
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, SimulatedDriver
from headway.queue.scheduler import Scheduler
from headway.queue.settings import EvalSettings, QueueSettings, SchedulerSettings, StopSettings
from headway.telemetry.header import new_header
from headway.telemetry.journal import JournalWriter, read_journal
from headway.telemetry.metrics import LATENCY_PARTS, RunMetrics
from headway.telemetry.progress import WIDTH, Progress
from headway.telemetry.records import Entry
from headway.telemetry.report import report_json, report_text

CLEAN = SimSettings(max_running=16)
FAULTY = replace(
    CLEAN,
    p_environment_fails=0.05,
    p_infrastructure_fails=0.05,
    p_hangs=0.02,
    p_score_fails=0.05,
    p_sandbox_lost=0.05,
    p_repeated=0.1,
)


def scheduler_settings(bound: int) -> SchedulerSettings:
    return SchedulerSettings(
        queue=QueueSettings(group_size=4, batch_size=16, bound=bound),
        eval=EvalSettings(num_tasks=6, every_steps=4),
        stop=StopSettings(steps=12),
        rollout_timeout_s=30.0,
    )


def journal_of(run: SimRun, settings: SchedulerSettings, path):
    writer = JournalWriter(path)
    writer.write_header(new_header(config={}, seed=1, queue=to_plain(settings)))
    for entry in run.entries:
        writer.write_event(entry.seq, entry.t, entry.event, entry.commands, entry.notes)
    writer.close()
    return read_journal(path)


def killed_and_resumed(settings: SchedulerSettings, sim: SimSettings, kills: tuple[int, ...]) -> SimRun:
    run = SimRun(Scheduler(settings))
    driver = SimulatedDriver(run, sim, 3)
    for lineage, kill in enumerate(kills, start=1):
        if driver.play(stop_after=kill) is not None:
            return run
        driver = SimulatedDriver(run, sim, 3 + lineage, lineage=lineage, start_s=run.entries[-1].t)
    driver.play()
    return run


@pytest.mark.parametrize("bound", [0, 1, 3])
@pytest.mark.parametrize("sim", [CLEAN, FAULTY], ids=["clean", "faulty"])
@pytest.mark.parametrize("kills", [(), (700,), (900, 300)], ids=["one-life", "two-lives", "three-lives"])
def test_the_metrics_of_a_simulated_run_add_up(tmp_path, bound, sim, kills):
    settings = scheduler_settings(bound)
    run = killed_and_resumed(settings, sim, kills)
    journal = journal_of(run, settings, tmp_path / "journal.jsonl")
    metrics = RunMetrics.of(journal)
    summary = metrics.summary()

    assert summary["outcome"] == "steps"
    assert summary["steps"] == 12
    assert summary["conservation.settled_twice"] == 0
    assert summary["conservation.token_mismatches"] == 0
    assert summary["conservation.open"] == 0
    assert summary["conservation.ok"]
    assert summary["num_resumes"] == len(kills)

    steps = metrics.series()
    assert [row["step"] for row in steps] == list(range(1, 13))
    assert summary["conservation.by_fate"]["trained"] == sum(row["num_trained_rollouts"] for row in steps)
    assert summary["rl.staleness.token"]["max"] <= bound
    assert (
        sum(summary["rl.staleness.trajectory"]["counts"].values())
        == summary["conservation.by_fate"]["trained"]
    )

    shares = [summary[f"rl.trainer.{name}_fraction"] for name in ("wait", "compute", "publish")]
    assert sum(shares) == pytest.approx(1.0)
    assert min(shares) >= 0.0
    computed = len({(row.step, row.batch) for row in _steps_computed(run)}) * sim.train_s
    assert metrics.window.compute_s == pytest.approx(computed)

    parts = sum(summary[f"rl.latency.{name}"]["mean"] for name in LATENCY_PARTS)
    assert parts == pytest.approx(summary["rl.latency.end_to_end_s"]["mean"])
    if not sim.p_repeated:  # a repeated ToolEnded cannot be told from a second call
        prefill_s = summary["rl.latency.prefill_s"]["mean"]
        if bound:  # a version that comes in the middle of an answer has its context computed anew
            assert sim.num_turns * sim.prefill_s <= prefill_s <= 2 * sim.num_turns * sim.prefill_s
        else:
            assert prefill_s == pytest.approx(sim.num_turns * sim.prefill_s)

    scored = [e for e in run.entries if isinstance(e.event, Scored) and e.event.rollout.startswith("t")]
    counted = [e for e in scored if not any(isinstance(n, Ignored) and n.event == "Scored" for n in e.notes)]
    assert summary["num_rollouts"] == len(counted)
    assert metrics.depth.all.value == metrics.depth.signal.value == 0

    json.loads(report_json(summary))
    text = report_text(summary, steps)
    assert "steps: 12 steps are done" in text
    assert "does not add up" not in text


def _steps_computed(run: SimRun):
    return [
        e.event
        for e in run.entries
        if isinstance(e.event, StepEnded) and not any(isinstance(n, Ignored) for n in e.notes)
    ]


def test_queue_depth_agrees_with_what_the_scheduler_says_at_each_release(tmp_path):
    settings = scheduler_settings(3)
    run = killed_and_resumed(settings, FAULTY, (900,))
    metrics = RunMetrics()
    num_checked = 0
    for entry in run.entries:
        metrics.feed(Entry(entry.seq, entry.t, entry.event, tuple(entry.commands), tuple(entry.notes)))
        for note in entry.notes:
            if isinstance(note, BatchReleased):
                assert metrics.depth.signal.value == note.queued_groups
                num_checked += 1
    assert num_checked >= 12


def test_progress_of_a_simulated_run_is_one_line_a_step(tmp_path):
    settings = scheduler_settings(1)
    run = killed_and_resumed(settings, CLEAN, ())
    metrics = RunMetrics(new_header(config={}, seed=1, queue=to_plain(settings)))
    progress, lines = Progress(metrics), []
    for entry in run.entries:
        record = Entry(entry.seq, entry.t, entry.event, tuple(entry.commands), tuple(entry.notes))
        metrics.feed(record)
        lines += progress.after(record)
    assert len([line for line in lines if "/12" in line[:10]]) == 12
    assert max(map(len, lines)) <= WIDTH
