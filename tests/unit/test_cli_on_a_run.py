"""report and replay on the journal of a simulated run."""

import json
import re
import sys

import pytest

from headway.cli.main import main
from headway.core.events import SettingChanged
from headway.telemetry.journal_writer import JournalWriter
from tests.simulation.journals import simulated_journal


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    simulated_journal(path, "stop.steps=3")
    return path


def test_report_as_text_and_as_json(run_dir, capsys):
    assert main(["report", str(run_dir)]) == 0
    assert "3 steps" in capsys.readouterr().out
    assert main(["report", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 3


def test_replay_verifies(run_dir, capsys):
    assert main(["replay", str(run_dir), "--verify"]) == 0
    assert capsys.readouterr().out.startswith("verified: ")


def test_replay_of_a_changed_journal_is_exit_code_1(run_dir, tmp_path, capsys):
    text = (run_dir / "journal.jsonl").read_text()
    (tmp_path / "journal.jsonl").write_text(text.replace('"at_s":180.0', '"at_s":181.0', 1))
    assert main(["replay", str(tmp_path), "--verify"]) == 1
    assert capsys.readouterr().out.startswith(
        "event 0 (RunStarted at 0.000000 s) gives other commands than recorded\n"
    )


def test_a_damaged_journal_is_bad_input_with_its_line(run_dir, tmp_path, capsys):
    lines = (run_dir / "journal.jsonl").read_text().splitlines(keepends=True)
    lines[4] = "damage\n"
    (tmp_path / "journal.jsonl").write_text("".join(lines))
    assert main(["replay", str(tmp_path), "--verify"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'journal.jsonl'}:5: ")


def test_a_page_and_events_are_written_instead_of_the_report(run_dir, tmp_path, capsys):
    pytest.importorskip("plotly")
    pytest.importorskip("tensorboard")
    page, events = tmp_path / "report.html", tmp_path / "events"
    assert main(["report", str(run_dir), "--html", str(page), "--tensorboard", str(events)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"{page}: ")
    assert out[1:] == [f"{events}: 3 steps"]
    assert page.read_text().startswith("<!doctype html>")
    assert main(["report", str(run_dir), "--html", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: --html must name a file, and this is a directory")
    assert main(["report", str(run_dir), "--json", "--html", str(page)]) == 2


def test_a_page_without_plotly_is_bad_input(run_dir, tmp_path, capsys, monkeypatch):
    from headway.telemetry.page.render import plotly_js

    plotly_js.cache_clear()
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert main(["report", str(run_dir), "--html", str(tmp_path / "report.html")]) == 2
    assert "pip install 'headway[report]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_page_shows_settings_as_they_are_by_now(run_dir, tmp_path, capsys):
    lines = (run_dir / "journal.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines if '"seq"' in line]
    changed = SettingChanged("queue.bound", 7, checked=True)
    (tmp_path / "journal.jsonl").write_text("\n".join(lines) + "\n")
    writer = JournalWriter(tmp_path / "journal.jsonl", append=True)
    writer.write_event(len(entries), 1e6, changed, (), ())
    writer.close()
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    row = text[text.index("queue.bound", text.index("What differs from the defaults")) :]
    row = re.sub(r"<[^>]*>", " ", row[: row.index("</tr>")])
    assert row.split()[-4:] == ["queue.bound", "7", "2", "2"]
