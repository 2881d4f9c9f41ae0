"""headway sandbox: what is on this machine, what is ended, what holds and how fast it is."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from headway.cli.main import cli
from headway.sandbox import census as census_module
from headway.sandbox import leases
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.leases import LeaseBook
from headway.sandbox.settings import SandboxSettings


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(leases.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


def told(*arguments, code=0):
    result = CliRunner().invoke(cli, ["sandbox", *arguments], standalone_mode=False)
    assert result.exception is None, result.output
    assert result.return_value == code, result.output
    return result.output


async def _left(folder, run, *, alive=False, name="s1"):
    """A bubblewrap sandbox with files, whose owner is dead or this process."""
    directory = str(folder / "sandboxes")
    book = LeaseBook(run, SandboxSettings(directory=directory))
    book.begin(name, {"run": run})
    book.started(name, name)
    provider = BubblewrapProvider(SandboxSettings(directory=directory))
    await (await provider.create(name, {"run": run})).write("file", b"x")
    if not alive:
        os.close(book._file)
    return folder / "sandboxes" / run / name


async def test_ls_tells_whose_each_is_and_what_is_left_over(folder, monkeypatch):
    assert told("ls") == "no sandboxes\n"
    await _left(folder, "first-1-2")
    await _left(folder, "second-1-2", alive=True)
    dead, live = json.loads(told("ls", "--json"))
    assert (dead["sandbox"], dead["run"], dead["state"], dead["owner_alive"]) == (
        "s1", "first-1-2", "left over", False,
    )  # fmt: skip
    assert (live["provider"], live["state"], live["owner_pid"]) == ("bubblewrap", "live", os.getpid())
    head, first, second, last = told("ls").splitlines()
    assert head.split() == ["SANDBOX", "RUN", "PROVIDER", "IMAGE", "STATE", "AGE", "OWNER"]
    assert first.split()[:2] == ["s1", "first-1-2"]
    assert first.endswith(f"{os.getpid()}, dead")
    assert second.split()[4] == "live"
    assert last == "1 of live processes, 1 left over; `headway sandbox reap --all-dead` ends those"
    now = leases.wall_time()
    monkeypatch.setattr(census_module, "wall_time", lambda: now + 61)
    assert [seen["state"] for seen in json.loads(told("ls", "--json"))] == ["left over", "silent"]


async def test_reap_ends_what_is_left_of_a_run_or_of_all_and_spares_the_living(folder):
    first, second = await _left(folder, "first-1-2"), await _left(folder, "other-3-4")
    live = await _left(folder, "first-5-6", alive=True)
    run_dir = folder / "runs" / "first"
    run_dir.mkdir(parents=True)
    shown = json.loads(_elsewhere(folder, "reap", str(run_dir), "--json"))
    assert shown == {"ended": ["s1"], "failed": {}, "spared": 1}
    assert [path.exists() for path in (first, second, live)] == [False, True, True]
    assert "spared 1 of process" in _elsewhere(folder, "reap", "--all-dead")
    assert [path.exists() for path in (second, live)] == [False, True]
    assert "ended s1" in _elsewhere(folder, "reap", "first-5-6", "--force")
    assert not live.exists()


def _elsewhere(folder, *arguments):
    """Run the command in a process of its own: this one's event loop runs, and its locks are its own."""
    code = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from headway.cli.main import main; sys.exit(main(['sandbox', *sys.argv[2:]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_reap_wants_to_know_whose(folder):
    for arguments in ([], ["run", "--all-dead"]):
        result = CliRunner().invoke(cli, ["sandbox", "reap", *arguments])
        assert result.exit_code == 2
        assert "--all-dead" in result.output


def test_check_tells_what_each_provider_holds(folder):
    shown = json.loads(told("check", "--provider", "bubblewrap", "--json"))
    found = shown["providers"]["bubblewrap"]
    assert {"name": "network", "level": "enforced", "remedy": ""} in found["guarantees"]
    assert found["again_s"] > 0
    assert "local: works" in told("check", "--provider", "local")


def test_check_of_a_provider_that_does_not_work_names_the_remedy(folder, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("HOME", str(folder))
    text = told("check", "--provider", "local", code=2)
    assert "needs a C compiler" in text
    assert "bubblewrap" in text


def test_bench_measures_within_its_time(folder):
    shown = json.loads(told("bench", "--provider", "local", "--seconds", "0.5", "--json"))["local"]
    assert shown["create_ms_p50"] <= shown["create_ms_p99"]
    assert shown["creates_per_s"] > 0
    head, row = told("bench", "--provider", "local", "--seconds", "0.3").splitlines()
    assert (head.split()[0], row.split()[0]) == ("PROVIDER", "local")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bench", "--provider", "chroot"), "there is no provider chroot"),
        (("check", "--provider", "chroot"), "there is no provider chroot"),
        (("bench", "--seconds", "0"), "must be above 0"),
        (("bench", "--seconds", "-1"), "must be above 0"),
        (("bench", "--seconds", "nan"), "must be above 0"),
        (("bench", "--seconds", "inf"), "at most 3600"),
    ],
)
def test_what_cannot_be_checked_or_measured_is_a_wrong_command(arguments, said):
    result = CliRunner().invoke(cli, ["sandbox", *arguments])
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert "Traceback" not in result.output
