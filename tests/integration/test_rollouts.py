"""headway rollouts on real runs: what it shows and writes is what was sampled and trained."""

import json
import re
import shutil
import struct

import pyarrow.parquet as pq
import pytest

from headway.core.payload import read_payload
from headway.runtime.transcripts import transcripts
from headway.telemetry.rollout_select import Selection
from headway.telemetry.rollout_table import rollout_table
from tests.integration.conftest import wait_for


def test_transcripts_and_files_of_a_run(bench):
    # synchronous: with an update in the midst of an answer it has two pieces, one a version
    assert bench.train("eval.num_tasks=2", "queue.bound=0").code == 0
    run, records = bench.run_dir, rollout_table(bench.run_dir)
    payloads = {record.rollout: read_payload(run / "payloads", record.payload) for record in records}

    by_step = {}
    for record in records:
        if record.step is not None:
            by_step.setdefault(record.step, set()).add(record.rollout)
    assert by_step == {step: set(rows) for step, rows in bench.trained().items()}

    for item in transcripts(run, Selection()):
        (branch,), (sample,) = item["branches"], payloads[item["rollout"]].samples
        prompt, answer = branch["pieces"]
        said = item["messages"][-1]["content"]
        assert item["messages"][0]["content"] in prompt["text"]
        assert answer["text"].startswith(said)
        assert (prompt["num_tokens"], answer["num_tokens"]) == (
            len(sample.token_ids) - sample.num_trainable,
            sample.num_trainable,
        )
        logprobs = [value for value, flag in zip(sample.logprobs, sample.trainable, strict=True) if flag]
        assert answer["min_logprob"] == min(logprobs)
        assert [turn["turn"] for turn in item["turns"]] == [0]
        assert item["undecoded"] == item["missing"] == ""

    shown = bench.headway("rollouts", run, "--worst", "--show", "--limit", "2", "--logprobs")
    assert shown.code == 0, shown.text
    assert len(re.findall(r"^rollout ", shown.out, re.MULTILINE)) == 2
    assert shown.out.count("[[") == shown.out.count("]]") == 2
    assert shown.out.count("log-probs:") == 2

    files = [bench.folder / "all.jsonl", bench.folder / "all.parquet"]
    written = bench.headway("rollouts", run, "--jsonl", files[0], "--parquet", files[1])
    assert written.code == 0, written.text
    found = [json.loads(line) for line in files[0].read_text().splitlines()]
    for rows in (found, pq.read_table(files[1]).to_pylist()):
        assert [row["rollout"] for row in rows] == [record.rollout for record in records]
        for row, record in zip(rows, records, strict=True):
            (sample,) = payloads[row["rollout"]].samples
            assert row["token_ids"] == list(sample.token_ids)
            assert row["trainable"] == list(sample.trainable)
            assert struct.pack(f"{len(row['logprobs'])}f", *row["logprobs"]) == sample.logprobs.tobytes()
            assert (row["reward"], row["advantage"], row["step"]) == (
                record.reward,
                record.advantage,
                record.step,
            )


def test_a_run_that_goes_on_and_one_that_was_killed_can_be_looked_into(bench):
    command = bench.start("train", bench.config, "stop.steps=500")
    command.until_step(1)
    shown = bench.headway("rollouts", bench.run_dir, "--limit", "1000")
    assert shown.code == 0, shown.text
    assert " trained " in shown.out
    command.kill()
    wait_for(lambda: not command.workers(), lambda: f"the end of {command.workers()}")
    shown = bench.headway("rollouts", bench.run_dir, "--best", "--show", "--limit", "1")
    assert shown.code == 0, shown.text
    assert "[[" in shown.out


@pytest.mark.slow
def test_what_was_removed_is_said(bench):
    assert bench.train("stop.steps=1").code == 0
    name = rollout_table(bench.run_dir)[0].rollout
    config = bench.run_dir / "journal.jsonl"
    config.write_text(config.read_text().replace('"path":"tiny"', '"path":"/no/such/model"', 1))
    shown = bench.headway("rollouts", bench.run_dir, "--rollout", name)
    assert shown.code == 0, shown.text
    assert "the tokenizer of the run's model '/no/such/model' is not on this machine" in shown.out
    assert "--- user ---" in shown.out
    shutil.rmtree(bench.run_dir / "payloads")
    shown = bench.headway("rollouts", bench.run_dir, "--rollout", name)
    assert shown.code == 0, shown.text
    assert "was removed, by retention or by hand" in shown.out
