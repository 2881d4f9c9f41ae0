"""What runs inside a machine that is reached by commands: what it says of it."""

import json
import os

import pytest

from headway.sandbox import inside

CGROUP = {
    "memory.events": "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\n",
    "pids.events": "max 5\n",
    "cpu.stat": "usage_usec 1234567\nuser_usec 1000000\nsystem_usec 234567\n",
    "memory.peak": "9000000\n",
    "memory.current": "4000000\n",
}
CGROUP_OF_1 = {
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "pids/pids.events": "max 5\n",
    "cpuacct/cpuacct.usage": "1234567890\n",
    "memory/memory.max_usage_in_bytes": "9000000\n",
    "memory/memory.usage_in_bytes": "4000000\n",
}


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    folder = tmp_path / "cgroup"
    folder.mkdir()
    monkeypatch.setattr(inside, "_GROUP", str(folder))
    return folder


def stats(work, capsys):
    job = {"work": str(work), "uid": 0, "outside": "", "temporary": []}
    assert inside.main("stats", json.dumps(job)) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("files", [CGROUP, CGROUP_OF_1], ids=["version 2", "version 1"])
def test_stats_tell_files_and_what_the_control_group_counts(tmp_path, cgroup, capsys, files):
    work = tmp_path / "work"
    (work / "folder").mkdir(parents=True)
    (work / "folder" / "file").write_bytes(b"x" * 10_000)
    (work / "link").symlink_to("/nowhere")
    for name, text in files.items():
        (cgroup / name).parent.mkdir(exist_ok=True)
        (cgroup / name).write_text(text)
    told = stats(work, capsys)
    held = sum(path.lstat().st_blocks * 512 for path in work.rglob("*"))
    assert told.pop("num_processes") >= 0
    assert told == {
        "disk_bytes": held,
        "num_files": 3,
        "oom": 2,
        "pids": 5,
        "cpu_us": 1234567,
        "peak": 9000000,
        "memory_bytes": 4000000,
    }


@pytest.mark.parametrize("text", ["", "max\n", "\n", "oom_kill\n", "usage_usec many\n"])
def test_stats_leave_out_what_no_control_group_tells(tmp_path, cgroup, capsys, text):
    for name in CGROUP:
        (cgroup / name).write_text(text)
    assert stats(tmp_path, capsys).keys() == {"disk_bytes", "num_files", "num_processes"}


def test_stats_count_the_processes_of_the_machine_but_the_first_and_its_own(
    tmp_path, cgroup, capsys, monkeypatch
):
    listdir = os.listdir
    lines = {
        "self": [b"python3", b"-c", b"text", b"stats", b"{}"],
        "1": [b"python3", b"-c", b"text", b"hold"],
    }
    lines |= {"7": [b"sleep", b"60"], "8": lines["self"], "9": []}
    monkeypatch.setattr(os, "listdir", lambda path=".": list(lines) if path == "/proc" else listdir(path))
    monkeypatch.setattr(inside, "_words", lambda name: lines[name])
    assert stats(tmp_path, capsys)["num_processes"] == 2
