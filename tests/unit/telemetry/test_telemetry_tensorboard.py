"""Scalars for TensorBoard, read back as TensorBoard reads them."""

from __future__ import annotations

import sys
from datetime import datetime

import pytest

from headway.core import events as e
from headway.core import notes as n
from headway.core.errors import UserError
from headway.telemetry import tensorboard
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.tensorboard import TensorBoardSink, convert, require_tensorboard

accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def read(folder):
    found = accumulators.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return found


def series(found, tag):
    return [(event.step, round(event.value, 6)) for event in found.Scalars(tag)]


def feed(script, metrics, sink):
    lines = []
    for record in script.records:
        metrics.feed(record)
        if hasattr(record, "event"):
            lines += sink.after(record)
    return lines


def live(script, header, folder):
    """Feed a run to a sink as the driver does."""
    metrics = RunMetrics(header)
    sink = TensorBoardSink(folder, header, metrics)
    lines = feed(script, metrics, sink)
    sink.close()
    return metrics, lines


def test_a_live_sink_and_a_conversion_tell_the_same(kit, whole_journal, tmp_path):
    _, lines = live(kit.whole_run(), whole_journal.header, tmp_path / "live")
    assert lines == []
    assert convert(whole_journal, tmp_path / "later") == 2
    for folder in ("live", "later"):
        found = read(tmp_path / folder)
        assert series(found, "train/reward") == [(1, 0.75), (2, 0.5)]
        assert series(found, "eval/reward") == [(0, 0.25), (2, 0.75)]
        assert series(found, "loss/loss") == [(1, 0.5), (2, 0.25)]
        assert series(found, "rates/consumption_per_s") == [(1, 0.5), (2, 0.333333)]
        began = datetime.fromisoformat(whole_journal.header.created).timestamp()
        assert [event.wall_time - began for event in found.Scalars("train/reward")] == [25.0, 34.0]


def test_a_rollback_takes_back_what_was_written(kit, tmp_path):
    script = kit.whole_run()
    script.event(50.0, e.DeadlinePassed(), n.RolledBackTo(1, 2, 1, "loss"))
    script.step(60.0, 2, 1.0, loss=0.125)
    live(script, kit.header(), tmp_path)
    assert series(read(tmp_path), "loss/loss") == [(1, 0.5), (2, 0.125)]
    assert series(read(tmp_path), "eval/reward") == [(0, 0.25)]


def test_a_resume_goes_on_in_a_file_of_its_own_from_the_checkpoint(kit, tmp_path):
    header, first = kit.header(), kit.whole_run()
    metrics, _ = live(first, header, tmp_path)
    sink = TensorBoardSink(tmp_path, header, metrics)
    later = kit.Script()
    later.event(41.0, e.RunResumed(1, 1, 41.0))
    later.step(50.0, 2, 1.0, loss=0.125)
    later.step(60.0, 3, 1.0, loss=0.0625)
    assert feed(later, metrics, sink) == []
    sink.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert series(read(tmp_path), "loss/loss") == [(1, 0.5), (2, 0.125), (3, 0.0625)]


def test_switched_on_at_a_resume_it_begins_with_what_there_was(kit, tmp_path):
    header, metrics = kit.header(), kit.whole_run().metrics()
    sink = TensorBoardSink(tmp_path / "new", header, metrics)
    later = kit.Script()
    later.event(41.0, e.RunResumed(1, 2, 41.0))
    later.step(50.0, 3, 1.0, loss=0.125)
    feed(later, metrics, sink)
    sink.close()
    found = read(tmp_path / "new")
    assert series(found, "loss/loss") == [(1, 0.5), (2, 0.25), (3, 0.125)]
    assert series(found, "eval/reward") == [(0, 0.25), (2, 0.75)]


def test_a_full_disk_ends_the_sink_and_not_the_run(kit, tmp_path, monkeypatch):
    header, metrics = kit.header(), RunMetrics(kit.header())
    sink = TensorBoardSink(tmp_path, header, metrics)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensorboard.EventFile, "_write", full)
    assert feed(kit.whole_run(), metrics, sink) == [
        "warning: scalars for TensorBoard are not written any more: No space left on device"
    ]


def test_a_folder_with_events_is_refused(whole_journal, tmp_path):
    convert(whole_journal, tmp_path)
    with pytest.raises(UserError, match="without events"):
        convert(whole_journal, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        convert(whole_journal, tmp_path / "file")


def test_a_missing_package_is_named_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(UserError) as caught:
        require_tensorboard("telemetry.tensorboard")
    assert "headway[tensorboard]" in str(caught.value)
    assert str(caught.value).startswith("telemetry.tensorboard: ")
