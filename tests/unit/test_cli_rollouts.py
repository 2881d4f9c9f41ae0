"""headway rollouts on the journal of a simulated run, whose payloads are not there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headway.cli.main import main
from headway.matching.roles import SimSettings
from headway.telemetry.rollout_table import rollout_table
from tests.simulation.journals import simulated_journal

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    simulated_journal(path, "stop.steps=3", sim=SimSettings(p_environment_fails=0.05))
    return path


def lines_of(capsys):
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err.splitlines()


def test_the_newest_are_shown_and_how_many_there_are(run_dir, capsys):
    records = rollout_table(run_dir)
    assert main(["rollouts", str(run_dir)]) == 0
    out, err = lines_of(capsys)
    assert out[0].split()[:4] == ["rollout", "task", "purpose", "reward"]
    assert [line.split()[0] for line in out[1:]] == [record.rollout for record in records[:-21:-1]]
    assert err == [
        f"20 of {len(records):,} rollouts, newest first; --limit N shows more, 0 all; --show what they said"
    ]


def test_the_worst_of_a_step(run_dir, capsys):
    records = [record for record in rollout_table(run_dir) if record.step == 2]
    assert main(["rollouts", str(run_dir), "--worst", "--step", "2", "--limit", "0"]) == 0
    out, err = lines_of(capsys)
    assert len(out) == len(records) + 1
    rewards = [float(line.split()[3]) for line in out[1:]]
    assert rewards == sorted(rewards)
    assert err[0].startswith(f"{len(records)} of ")


def test_failed_ones_and_none(run_dir, capsys):
    assert main(["rollouts", str(run_dir), "--failed", "--limit", "0"]) == 0
    out, _ = lines_of(capsys)
    assert len(out) - 1 == sum(bool(record.failures) for record in rollout_table(run_dir)) > 0
    assert main(["rollouts", str(run_dir), "--fate", "unused", "--min-reward", "2"]) == 0
    out, err = lines_of(capsys)
    assert (out, len(err)) == ([], 1)
    assert err[0].startswith("none of the run's ")


def test_transcripts_without_payloads_say_so(run_dir, capsys):
    group = rollout_table(run_dir)[0].group
    assert main(["rollouts", str(run_dir), "--group", group]) == 0
    out, _ = lines_of(capsys)
    members = [record for record in rollout_table(run_dir) if record.group == group]
    titles = [line for line in out if line.startswith("rollout ")]
    assert [line.split()[1] for line in titles] == [record.rollout for record in members]
    assert sum("its tokens are gone: payloads/" in line for line in out) == len(members)


def test_files_without_payloads_have_every_rollout(run_dir, tmp_path, capsys):
    records = rollout_table(run_dir)
    files = [str(tmp_path / name) for name in ("a.jsonl", "a.parquet")]
    assert main(["rollouts", str(run_dir), "--jsonl", files[0], "--parquet", files[1]]) == 0
    out, err = lines_of(capsys)
    assert (out, len(err)) == ([], 2)
    found = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["rollout"] for row in found] == [record.rollout for record in records]
    assert all(row["missing"] and row["sample"] is None for row in found)
    assert pq.read_table(files[1]).column("reward").to_pylist() == [record.reward for record in records]


def test_json_lines_to_standard_output(run_dir, capsys):
    assert main(["rollouts", str(run_dir), "--limit", "2", "--jsonl", "-"]) == 0
    out, err = lines_of(capsys)
    assert [json.loads(line)["rollout"] for line in out] == [r.rollout for r in rollout_table(run_dir)[:2]]
    assert err[0].endswith("2 rows written to standard output")


@pytest.mark.parametrize("option", ["--rollout", "--group", "--task"])
def test_a_name_that_is_not_there_is_bad_input(run_dir, option, capsys):
    assert main(["rollouts", str(run_dir), option, "t00000"]) == 2
    _, err = lines_of(capsys)
    assert err[0].startswith(f"error: {option}: must be a {option[2:]} of this run, which has ")
    assert "(got 't00000'). The nearest is " in err[0]


@pytest.mark.parametrize("options", [["--limit", "0"], ["--show", "--limit", "0"], ["--jsonl", "-"]])
def test_a_reader_that_has_seen_enough_is_no_fault(run_dir, options):
    command = [sys.executable, "-m", "headway", "rollouts", str(run_dir), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 0
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()


def test_looking_loads_no_torch(run_dir):
    program = (
        "import sys; from headway.cli.main import main; "
        f"main(['rollouts', {str(run_dir)!r}, '--show']); assert 'torch' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, stdout=subprocess.DEVNULL)
