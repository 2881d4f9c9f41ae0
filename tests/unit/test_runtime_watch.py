"""`headway watch` on a run that ended, was killed, has only begun, or goes on."""

import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.runtime import directory
from headway.telemetry.screen import can_be_live
from tests.unit.telemetry.conftest import make_header, whole_run

HELD = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "demo"
    (path / "payloads").mkdir(parents=True)
    whole_run().write(path / "journal.jsonl", make_header())
    return path


@pytest.fixture
def driver(run_dir):
    """A process that counts as the run's driver until its `stdin` is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, "headway"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"up\n"
    directory.begin_life(run_dir, directory.LifeRecord(process.pid, "demo-1", str(run_dir)))
    yield process
    process.kill()
    process.communicate()


def without_its_end(run_dir):
    """Cut the journal before Finish; return what was cut."""
    path = run_dir / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    return lines[-1]


def watched(run_dir, capsys, *options):
    assert main(["watch", str(run_dir), "--every", "0.1", *options]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_finished_run_is_shown_once_as_text(run_dir, capsys):
    lines = watched(run_dir, capsys, "--once")
    assert lines[0] == "── demo ── not running: finished (steps) " + "─" * 39
    assert lines[1].startswith("step       2/2, 40.0s, 100%  █████")
    assert lines[-1] == "not running: finished (steps)"
    assert max(map(len, lines)) <= 80


def test_a_pipe_gets_every_line_and_then_the_end(run_dir, capsys):
    lines = watched(run_dir, capsys)
    assert lines[:2] == [
        "starting: generator, trainer, environment",
        "evaluating version 0 on up to 1 tasks",
    ]
    assert [line.split()[0] for line in lines if "/2 " in line] == ["1/2", "2/2"]
    assert lines[-2:] == ["finished (steps) after 40.0s", "not running: finished (steps)"]


@pytest.mark.parametrize("once", [["--once"], []])
def test_a_killed_run_says_how_it_goes_on(run_dir, capsys, once, driver):
    without_its_end(run_dir)
    driver.communicate()
    assert directory.driver_pid(run_dir) is None
    lines = watched(run_dir, capsys, *once)
    assert lines[-1] == f"not running: killed; `headway resume {run_dir}` goes on"


def test_a_run_that_was_ended_at_once_says_how_it_goes_on(run_dir, capsys):
    without_its_end(run_dir)
    assert watched(run_dir, capsys)[-1] == f"not running: ended at once; `headway resume {run_dir}` goes on"


def test_a_frame_of_a_run_that_goes_on_tells_the_time_since_its_last_record(run_dir, capsys, driver):
    without_its_end(run_dir)
    path = run_dir / "journal.jsonl"
    os.utime(path, (time.time() - 3600, time.time() - 3600))
    lines = watched(run_dir, capsys, "--once")
    assert lines[0].startswith("── demo ── stopping (steps)")
    assert lines[1].startswith("step       2/2, 1h00m, 0.00s left")
    assert "not running" not in "\n".join(lines)


def test_a_growing_run_is_followed_to_its_end(run_dir, capsys, driver):
    path = run_dir / "journal.jsonl"
    data = path.read_bytes()
    path.unlink()

    def write():
        for begin in range(0, len(data), len(data) // 7):
            time.sleep(0.1)
            with path.open("ab") as file:
                file.write(data[begin : begin + len(data) // 7])
        time.sleep(0.1)
        directory.end_life(run_dir)
        driver.communicate()

    thread = threading.Thread(target=write)
    thread.start()
    lines = watched(run_dir, capsys)
    thread.join()
    assert [line.split()[0] for line in lines if "/2 " in line] == ["1/2", "2/2"]
    assert lines[-1] == "not running: finished (steps)"


def test_a_run_that_never_began_is_bad_input(run_dir, capsys, monkeypatch):
    monkeypatch.setattr("headway.runtime.watch._CLAIM_WAIT_S", 0.2)
    (run_dir / "journal.jsonl").write_bytes(b'{"header":')
    assert main(["watch", str(run_dir), "--every", "0.1"]) == 2
    assert "has no complete first line" in capsys.readouterr().err


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_journal_that_is_no_file_is_bad_input_at_once(run_dir, capsys, make):
    (run_dir / "journal.jsonl").unlink()
    make(run_dir / "journal.jsonl")
    for command in ("watch", "report", "rollouts"):
        assert main([command, str(run_dir)]) == 2
        assert f"the journal {run_dir / 'journal.jsonl'} is not a file" in capsys.readouterr().err


def test_no_run_is_bad_input(tmp_path, capsys):
    assert main(["watch", str(tmp_path)]) == 2
    assert "must be the directory of a run" in capsys.readouterr().err


def test_watch_loads_no_torch(run_dir):
    program = f"import sys; from headway.cli.main import main; main(['watch', {str(run_dir)!r}, '--once'])"
    program += "; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("\nFalse\n"), done.stderr


def test_a_terminal_shows_the_last_frame_below_the_last_lines_and_stays_as_it_is(run_dir):
    master, slave = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30", "NO_COLOR": "1"}
    environ.pop("JPY_PARENT_PID", None)
    command = [sys.executable, "-m", "headway", "watch", str(run_dir)]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environ)
    os.close(slave)
    shown = b""
    try:
        while piece := os.read(master, 65536):
            shown += piece
    except OSError:  # the other end is closed
        pass
    assert process.wait() == 0
    text = shown.decode()
    assert "\x1b[?" not in text  # no mode of the terminal is touched
    assert "\x1b[3" not in text  # no colour
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert text.index("finished (steps) after 40.0s") < text.index("── demo ── not running: finished (steps)")


def test_notebooks_dumb_terminals_and_files_get_no_frame(tmp_path):
    _, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal, (tmp_path / "file").open("w") as file:
        assert can_be_live(terminal, {"TERM": "xterm"})
        assert not can_be_live(terminal, {"TERM": "dumb"})
        assert not can_be_live(terminal, {})
        assert not can_be_live(terminal, {"TERM": "xterm-color", "JPY_PARENT_PID": "1"})
        assert not can_be_live(file, {"TERM": "xterm"})


def test_a_life_record_tells_the_driver_only_while_it_lives(run_dir, driver):
    assert directory.driver_pid(run_dir) == driver.pid
    driver.communicate()
    assert directory.driver_pid(run_dir) is None
    assert directory.life_record(run_dir).pid == driver.pid
    (run_dir / "life.json").write_text(json.dumps({"pid": os.getpid(), "run_id": "x", "weights_dir": "y"}))
    directory.end_life(run_dir)
    assert directory.life_record(run_dir) is None
