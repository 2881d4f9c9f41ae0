"""Thinning, limits, transcripts, and the file that a page is written to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from headway.core.errors import UserError
from headway.telemetry.page import tables
from headway.telemetry.page.limits import Limits, limits_at
from headway.telemetry.page.parts import SettingRow
from headway.telemetry.page.thin import extremes, known, level_means, means, smoothed, stretches
from headway.telemetry.page.transcripts import MAX_CHARACTERS, views
from headway.telemetry.page.write import check_target, write_page


def test_extremes_keep_spikes_both_ends_and_the_order():
    values = [0.0] * 5000
    values[1234], values[3000] = 9.0, -9.0
    kept = extremes(values, 100)
    assert len(kept) <= 100
    assert kept == sorted(set(kept))
    assert {0, 1234, 3000, 4999} <= set(kept)
    assert extremes([3.0, 1.0, 2.0], 100) == [0, 1, 2]


def test_stretches_cover_everything_once():
    assert list(stretches(7, 3)) == [(0, 2), (2, 4), (4, 7)]
    assert list(stretches(2, 3)) == [(0, 1), (1, 2)]
    assert list(stretches(0, 3)) == []


def test_means_and_trailing_means():
    assert means([1, 2, 3, 4], [1.0, 3.0, 5.0, 7.0], 2) == ([1.5, 3.5], [2.0, 6.0])
    assert smoothed([3.0, 6.0, 9.0, 12.0]) == [3.0, 4.5, 6.0, 9.0]
    assert known([1, 2, 3], [None, float("nan"), 5.0]) == ([3], [5.0])


def test_means_of_a_level_weigh_by_time():
    # 4 for 1 s, 0 for 3 s, 8 for 4 s
    assert level_means([0.0, 1.0, 4.0, 8.0], [4.0, 0.0, 8.0, 1.0], 2) == ([2.0, 6.0], [1.0, 8.0])
    assert level_means([5.0, 5.0], [1.0, 2.0]) == ([5.0], [2.0])


def test_limits_follow_the_queues_settings():
    queue = {"batch_size": 64, "group_size": 8, "bound": 2, "depth": -1}
    assert limits_at(1.0, {"queue": queue}) == Limits(1.0, 8, 24)
    assert limits_at(1.0, {"queue": queue | {"depth": 1}}) == Limits(1.0, 8, 16)
    more = {"staleness": {"trajectory_bound": 0}, "oversampling": {"groups_extra": 3}}
    assert limits_at(1.0, {"queue": queue, **more}) == Limits(1.0, 8, 11)
    assert limits_at(1.0, {}) is None


def test_a_long_transcript_loses_its_middle():
    pieces = [
        {"kind": "masked", "text": "a" * MAX_CHARACTERS, "num_tokens": 5},
        {"kind": "trained", "text": "b" * MAX_CHARACTERS, "num_tokens": 6, "version": [1, 3], "turn": 0},
    ]
    (group,) = views([("Longest", [{"rollout": "g.0", "branches": [{"pieces": pieces}]}]), ("Failed", [])])
    head, note, tail = group["rollouts"][0]["branches"][0]
    assert len(head["text"]) + len(tail["text"]) == MAX_CHARACTERS
    assert (head["kind"], note["kind"], tail["kind"]) == ("masked", "note", "trained")
    assert f"{MAX_CHARACTERS:,} of {2 * MAX_CHARACTERS:,} characters" in note["text"]
    assert tail["title"] == "trained, 6 tokens, turn 0, version 3 of lineage 1"


def test_a_transcript_without_its_tokens_says_why():
    said = {
        "rollout": "g.0",
        "reward": None,
        "state": "failed_environment",
        "missing": "it left no tokens",
        "failures": [{"attempt": 0, "owner": "environment", "cause": "exception", "message": "boom"}],
        "branches": [],
    }
    (group,) = views([("Failed", [said])])
    (rollout,) = group["rollouts"]
    assert rollout["lines"] == ["attempt 0 failed (environment, exception): boom", "it left no tokens."]
    assert rollout["facts"] == ["failed_environment"]


def test_a_target_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    with pytest.raises(UserError, match="this is a directory") as caught:
        check_target(tmp_path)
    assert "report.html" in caught.value.remedy
    with pytest.raises(UserError, match="in a directory that exists"):
        check_target(tmp_path / "no" / "report.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="in a directory that exists"):
        check_target(tmp_path / "file" / "report.html")
    check_target(tmp_path / "report.html")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_the_right_to_write_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="may be written to"):
        check_target(tmp_path / "report.html")


def test_a_disk_that_is_full_leaves_the_old_report(tmp_path, monkeypatch):
    file = tmp_path / "report.html"
    file.write_text("old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        write_page(file, "new")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


@pytest.mark.parametrize("old", ["old", None])
def test_killed_while_it_is_written_the_old_report_stays_or_none_is_there(tmp_path, old):
    file = tmp_path / "report.html"
    if old is not None:
        file.write_text(old)
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from headway.telemetry.page.write import write_page\n"
        "os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_page(Path(sys.argv[1]), 'x' * 10_000_000)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(file)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert (file.read_text() if file.exists() else None) == old
    assert write_page(file, "new") == 3  # what the killed one left is no obstacle
    assert sorted(os.listdir(tmp_path)) == ["report.html"]
    assert file.read_text() == "new"


def test_settings_are_the_newest_and_those_that_changed_say_what_they_were():
    rows = [
        SettingRow("queue.bound", "4", "2", differs=True),
        SettingRow("stop.steps", "0", "0", differs=False, before="20"),
        SettingRow("run.seed", "0", "0", differs=False),
    ]
    first, rest = tables.settings(rows)
    assert first.columns == ("<key", "<value", "<default", "<began with")
    assert [tuple(map(str, row[1:])) for row in first.rows] == [("4", "2", "-"), ("0", "0", "20")]
    assert [row[1] for row in rest.rows] == ["0"]
    assert tables.settings(rows[:1])[0].columns == ("<key", "<value", "<default")
