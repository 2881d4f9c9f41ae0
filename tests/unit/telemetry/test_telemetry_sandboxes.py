"""Sandboxes of a run written by hand: where their time went, in numbers that can be added up on paper."""

from __future__ import annotations

import dataclasses
import json

import pytest

from headway.core import commands as c
from headway.core import events as e
from headway.core import notes as n
from headway.core.codec import to_plain
from headway.core.records import SandboxUse
from headway.telemetry.page.collect import PageData
from headway.telemetry.page.sandboxes import tables
from headway.telemetry.report import report_json, report_text
from headway.telemetry.sandbox_places import SandboxPlaces


@pytest.fixture
def script(kit):
    """A rollout's sandbox and its verifier's."""
    s = kit.Script()
    s.start(0.0, "g0.0")
    s.event(1.0, e.SandboxWanted("g0.0", 0, "a", "rollout"))
    s.event(3.0, e.DeadlinePassed(), c.GrantSandbox("g0.0", 0, "a"))
    s.event(4.0, e.SandboxReady("g0.0", 0, "a", 0.75))
    s.event(5.0, e.ToolEnded("g0.0", 0, 0, 0, 1.0, "exit", 0.25, 0.5, 1000))
    s.event(8.0, e.ToolEnded("g0.0", 0, 1, 1, 2.0, "wall", 0.5, 1.5, 3000))
    s.end(9.0, "g0.0", 4, tools=2)
    s.event(9.0, e.DeadlinePassed(), c.ReleaseSandbox("g0.0", 0, "a"))
    s.event(9.5, e.SandboxReleased("g0.0", 0, "a", 0.25, SandboxUse(2.0, 3000, 4096, 7)))
    s.event(10.0, e.SandboxWanted("g0.0", 0, "v", "verify"), c.GrantSandbox("g0.0", 0, "v"))
    s.event(11.0, e.SandboxReady("g0.0", 0, "v", 1.0))
    s.event(14.0, e.SandboxReleased("g0.0", 0, "v", 1.0))
    s.score(14.0, "g0.0", 1.0)
    return s


def test_where_sandbox_time_went_adds_up_from_wish_to_end(script):
    summary = script.metrics().summary()
    assert summary["rl.sandbox.time_s"] == {
        "queued": 2.0, "handed_over": 0.25, "starting": 1.75, "tools": 3.0, "idle": 2.0, "verifying": 2.0,
        "ending": 1.5,
    }  # fmt: skip
    assert sum(summary["rl.sandbox.time_s"].values()) == (9.5 - 1.0) + (14.0 - 10.0)


def test_a_start_is_told_by_phase(script):
    summary = script.metrics().summary()
    most = {
        name: summary[f"rl.sandbox.{name}"]["max"]
        for name in ("queue_s", "handover_s", "start_s", "first_call_overhead_s", "call_overhead_s", "end_s")
    }
    assert most == {
        "queue_s": 2.0, "handover_s": 0.25, "start_s": 1.0, "first_call_overhead_s": 0.25,
        "call_overhead_s": 0.5, "end_s": 1.0,
    }  # fmt: skip
    assert [row["sandbox"] for row in summary["rl.sandbox.slowest_starts"]] == ["a", "v"]
    assert summary["rl.sandbox.slowest_starts"][0] == {
        "sandbox": "a", "rollout": "g0.0", "purpose": "rollout", "t": 4.0, "queue_s": 2.0,
        "handover_s": 0.25, "start_s": 0.75,
    }  # fmt: skip


def test_commands_are_counted_by_cause_and_what_a_sandbox_used_is_told(script):
    summary = script.metrics().summary()
    assert summary["rl.sandbox.calls"] == {"exit": 1, "wall": 1}
    assert summary["rl.sandbox.call_s"]["mean"] == 1.5
    used = {
        name: summary[f"rl.sandbox.use.{name}"]["mean"] for name in ("cpu_s", "memory_bytes", "num_files")
    }
    assert used == {"cpu_s": 2.0, "memory_bytes": 3000.0, "num_files": 7.0}
    assert summary["rl.sandbox.use.disk_bytes"]["mean"] == 4096.0  # the verifier's told nothing


def test_levels_are_over_time(script):
    summary = script.metrics().summary()
    # of 14 seconds: queued in 2 of them, starting in 1 + 1, a place taken in 6.5 + 4
    assert summary["rl.sandbox.queued"] == {"mean": pytest.approx(2 / 14), "max": 1.0}
    assert summary["rl.sandbox.starting"] == {"mean": pytest.approx(2 / 14), "max": 1.0}
    assert summary["rl.sandbox.live"] == {"mean": pytest.approx(10.5 / 14), "max": 1.0}


def test_failures_are_counted_by_kind_with_their_last_words(kit):
    s = kit.Script()
    s.start(0.0, "g0.0", "g0.1")
    for number, name in enumerate(("a", "b")):
        s.event(0.0, e.SandboxWanted(f"g0.{number}", 0, name, "rollout"), c.GrantSandbox("g0.0", 0, name))
        s.event(1.0, e.SandboxLost(f"g0.{number}", 0, name, f"no room for {name}", "start"))
    s.event(2.0, e.SandboxWanted("g0.0", 0, "c", "rollout"), c.GrantSandbox("g0.0", 0, "c"))
    s.event(3.0, e.DeadlinePassed(), n.Warned("sandbox_timeout", "sandbox c did not start in time"))
    s.event(4.0, e.SandboxLost("g0.0", 0, "c", "late"), n.Ignored("SandboxLost", "c"))
    s.event(5.0, e.SandboxLost("g0.0", 0, "d", "worker_lost"))  # as journals had it before there was a kind
    s.event(5.0, e.SandboxLost("g0.0", 0, "e", "something went wrong"))
    summary = s.metrics().summary()
    assert summary["rl.sandbox.failures"] == {
        "deadline": {"num": 1, "last": "sandbox c did not start in time"},
        "other": {"num": 1, "last": "something went wrong"},
        "start": {"num": 2, "last": "no room for b"},
        "worker_lost": {"num": 1, "last": "worker_lost"},
    }
    assert summary["rl.sandbox.error_fraction"] == 1.0
    assert "failed, start: 2 times, the last: no room for b" in report_text(summary, [])


def test_what_is_rebuilt_is_no_second_start_and_its_time_no_idleness(kit):
    s = kit.Script()
    s.start(0.0, "g0.0")
    s.event(0.0, e.SandboxWanted("g0.0", 0, "a", "rollout"), c.GrantSandbox("g0.0", 0, "a"))
    s.event(1.0, e.SandboxReady("g0.0", 0, "a", 1.0, "warm"))
    s.event(1.0, e.SandboxReady("g0.0", 0, "a", 1.0, "warm"))  # told twice
    s.event(4.0, e.SandboxReady("g0.0", 0, "a", 2.0, "rebuilt"))
    s.event(6.0, e.SandboxReleased("g0.0", 0, "a"))
    summary = s.metrics().summary()
    assert summary["rl.sandbox.origins"] == {"rebuilt": 1, "warm": 1}
    assert summary["rl.sandbox.start_s"]["max"] == 1.0
    spent = summary["rl.sandbox.time_s"]
    assert (spent["starting"], spent["idle"], spent["ending"]) == (3.0, 3.0, 0.0)


def test_a_wish_that_was_never_granted_ends_with_its_rollout(kit):
    s = kit.Script()
    s.start(0.0, "g0.0")
    s.event(1.0, e.SandboxWanted("g0.0", 0, "a", "rollout"))
    s.event(3.0, e.RolloutFailed("g0.0", 0, "scheduler", "cancelled", ""))
    s.event(7.0, e.DeadlinePassed())
    summary = s.metrics().summary()
    assert summary["rl.sandbox.time_s"]["queued"] == 2.0
    assert summary["rl.sandbox.queued"]["mean"] == pytest.approx(2 / 7)


def test_a_refused_start_waits_again(kit):
    s = kit.Script()
    s.start(0.0, "g0.0")
    s.event(1.0, e.SandboxWanted("g0.0", 0, "a", "rollout"), c.GrantSandbox("g0.0", 0, "a"))
    s.event(2.0, e.SandboxRefused("g0.0", 0, "a", "no more", 3.0))
    s.event(2.0, e.SandboxRefused("g0.0", 0, "a", "no more", 3.0))
    s.event(5.0, e.DeadlinePassed(), c.GrantSandbox("g0.0", 0, "a"))
    s.event(6.0, e.SandboxReady("g0.0", 0, "a", 1.0))
    summary = s.metrics().summary()
    assert summary["rl.sandbox.refused"] == 1
    spent = summary["rl.sandbox.time_s"]
    assert (spent["queued"], spent["starting"], spent["handed_over"]) == (3.0, 2.0, 0.0)
    assert "refused 1 starts" in report_text(summary, [])


def test_a_slow_start_counts_from_its_first_wish(kit):
    s = kit.Script()
    s.start(0.0, "g0.0")
    s.event(1.0, e.SandboxWanted("g0.0", 0, "a", "rollout"), c.GrantSandbox("g0.0", 0, "a"))
    s.event(2.0, e.SandboxRefused("g0.0", 0, "a", "no more", 3.0))
    s.event(5.0, e.DeadlinePassed(), c.GrantSandbox("g0.0", 0, "a"))
    s.event(6.0, e.SandboxReady("g0.0", 0, "a", 1.0))
    (slow,) = s.metrics().summary()["rl.sandbox.slowest_starts"]
    assert (slow["queue_s"], slow["start_s"]) == (4.0, 1.0)


def test_what_a_rollout_that_ended_still_wished_for_is_queued_no_more(kit):
    s = kit.Script()
    s.start(0.0, "g0.0")
    s.event(1.0, e.SandboxWanted("g0.0", 0, "a", "rollout"))
    s.event(1.0, e.SandboxWanted("g0.0", 0, "b", "rollout"))
    s.end(2.0, "g0.0", 4)
    assert s.metrics().sandboxes.queued.value == 0
    places = SandboxPlaces(4)
    for name in "ab":
        places.wanted("g0.0", name)
    places.forget_wish("g0.0")
    assert places.num_waiting == 0


def test_what_tensorboard_shows_of_a_step(script):
    script.event(20.0, e.SandboxWanted("g0.1", 0, "b", "rollout"), c.GrantSandbox("g0.1", 0, "b"))
    script.event(20.0, e.SandboxWanted("g0.1", 0, "c", "rollout"))
    script.event(20.0, e.SandboxLost("g0.2", 0, "d", "gone", "gone"))
    script.step(21.0, 1, 1.0)
    (told,) = script.metrics().sandbox_steps.values()
    starts = script.metrics().sandboxes.start_s.summary()
    assert told == {
        "sandbox/live": 1, "sandbox/starting": 1, "sandbox/queued": 1, "sandbox/failures/gone": 1,
        "sandbox/start_s_p50": starts["p50"], "sandbox/start_s_p99": starts["p99"],
    }  # fmt: skip


def test_a_resume_leaves_nothing_of_the_old_life(script):
    script.event(20.0, e.SandboxWanted("g0.1", 0, "b", "rollout"), c.GrantSandbox("g0.1", 0, "b"))
    script.event(30.0, e.RunResumed(1, 0, 25.0))
    summary = script.metrics().summary()
    assert summary["rl.sandbox.time_s"]["queued"] == 2.0
    assert script.metrics().sandboxes.live.value == 0


def test_an_older_journals_events_are_read_and_what_they_do_not_tell_is_unknown(script):
    new = {
        "SandboxReady": {"origin"}, "SandboxReleased": {"end_s", "use"}, "SandboxLost": {"failure"},
        "ToolEnded": {"overhead_s", "cpu_s", "memory_bytes"},
    }  # fmt: skip
    old = type(script)()
    for record in script.records:
        kind, plain = type(record.event).__name__, to_plain(record.event)
        known = {name: value for name, value in plain.items() if name not in new.get(kind, ())}
        old.records.append(dataclasses.replace(record, event=e.event_from_plain(kind, known)))
    summary = old.metrics().summary()
    assert summary["rl.sandbox.call_overhead_s"]["mean"] is None
    assert summary["rl.sandbox.end_s"]["mean"] is None
    assert summary["rl.sandbox.start_s"]["max"] == 1.0
    assert summary["rl.sandbox.time_s"]["tools"] == 3.0


def test_the_reports_tell_it(script, kit):
    metrics = script.metrics()
    text = report_text(metrics.summary(), [])
    part = text[text.index("Sandboxes\n") :].splitlines()
    assert part[2].split() == ["where", "their", "time", "went", "share", "in", "all"]
    assert next(line for line in part if line.startswith("running commands")).split()[-2:] == ["24%", "3.00s"]
    assert "commands of rollouts ended by: exit 1, wall 1" in part
    assert [line.split()[:3] for line in part if line.startswith(("a ", "v "))] == [
        ["a", "g0.0", "rollout"], ["v", "g0.0", "verify"],
    ]  # fmt: skip
    assert json.loads(report_json(metrics.summary()))["rl.sandbox.time_s"]["idle"] == 2.0
    data = PageData(kit.header())
    for record in script.records:
        data.feed(record)
    shown = tables(data.metrics.summary())
    assert [table.title for table in shown] == [
        "Where sandbox time went",
        "One sandbox",
        "Slowest sandbox starts",
    ]


def test_a_run_without_sandboxes_has_no_such_section(kit):
    s = kit.Script()
    s.start(0.0, "g0.0")
    summary = s.metrics().summary()
    assert "Sandboxes\n" not in report_text(summary, [])
    assert tables(summary) == []
