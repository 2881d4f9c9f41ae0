"""A run whose files are damaged or edited: one error with its remedy, or it goes on and says so."""

import json
import shutil

import pytest

from headway.cli.main import main
from headway.core.events import SCHEMA_VERSION
from headway.sandbox.store import Store
from headway.trainer.checkpoints import complete_checkpoints, step_of

STEPS = 8


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, tiny_model):
    """A run that was interrupted, with checkpoints of its two newest steps."""
    from tests.integration.conftest import Bench

    bench = Bench(tmp_path_factory.mktemp("stopped"))
    slow = bench.environment("await asyncio.sleep(0.1)")
    command = bench.start("train", bench.config, *slow, f"stop.steps={STEPS}").until_step(4)
    command.interrupt()
    assert command.ended().code == 130
    bench.check()
    yield bench
    bench.close()


@pytest.fixture
def run(stopped, tmp_path):
    """A copy that a test may break."""
    return shutil.copytree(stopped.run_dir, tmp_path / "test")


@pytest.fixture
def refused(run, capsys):
    """Resume in this process; it must be refused with exit code 2 and leave the run as it is."""

    def resume(*overrides):
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        assert main(["resume", str(run), *overrides]) == 2
        said = capsys.readouterr()
        lines = [line for line in said.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, said
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
        return lines[0]

    return resume


def checkpoints(run):
    return complete_checkpoints(run / "checkpoints")


def damage(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.slow
def test_without_an_undamaged_checkpoint_every_damage_is_named(run, refused):
    older, newest = checkpoints(run)
    damage(newest / "trainer.pt")
    (older / "manifest.json").write_text("{")
    said = refused()
    assert f"checkpoint {newest} is damaged: the SHA-256 of trainer.pt is not the record's" in said
    assert f"checkpoint {older} must have a readable manifest.json" in said
    assert f"Restore one of step {step_of(older)} or later in {run}/checkpoints from a copy" in said


def test_an_edited_config_is_refused_by_its_keys(run, refused):
    config = run / "config.toml"
    text = config.read_text()
    assert "bound = 1" in text
    config.write_text(text.replace("bound = 1", "bound = 3").replace("rate = 1e-05", "rate = 0.5"))
    said = refused()
    assert f"{config} is not the config that the run began with" in said
    assert "queue.bound is 3 (was 1)" in said
    assert "trainer.learning_rate is 0.5 (was 1e-05)" in said
    assert "Undo that; settings change by `headway resume RUN key=value`" in said
    config.write_text("[run\n")
    assert "config.toml:1" in refused()
    config.unlink()
    assert "config.toml" in refused()


def test_a_setting_that_may_not_change_says_what_rests_on_it(refused):
    said = refused("trainer.lora_rank=64")
    assert (
        "trainer.lora_rank: may not change after the run began: the checkpoints hold factors of this rank"
        in said
    )


def test_a_record_of_its_life_that_is_garbage(run, refused):
    (run / "life.json").write_text("{")
    said = refused()
    assert f"{run}/life.json must say which process drives the run" in said
    assert "delete that file" in said


def test_a_journal_that_is_garbled_in_its_middle_names_the_line(run, refused):
    journal = run / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:9], b"\x00\xff" * 40 + b"\n", *lines[10:]]))
    said = refused()
    assert f"{journal}:10: line 10 is not a JSON object" in said
    assert "restore the file from a copy" in said
    journal.write_bytes(b"".join([*lines[:9], b'{"seq": 1}\n', *lines[10:]]))
    assert f"{journal}:10: line 10 does not fit journal schema" in refused()


def test_a_journal_of_another_schema_or_without_a_header(run, refused):
    journal = run / "journal.jsonl"
    data = journal.read_bytes()
    journal.write_bytes(data.replace(b'"schema":%d' % SCHEMA_VERSION, b'"schema":1', 1))
    said = refused()
    assert f"the journal has schema version 1, this Headway reads version {SCHEMA_VERSION}" in said
    assert "Read it with the Headway that wrote it" in said
    for start in (b"", b"\x00" * 500, data[:100], b"[]\n", b'{"header": {"schema": %d}}\n' % SCHEMA_VERSION):
        journal.write_bytes(start)
        assert f"{journal}:1" in refused()


@pytest.mark.parametrize("cut", [True, False])
def test_payloads_that_are_gone_or_cut_are_named_with_their_files(run, refused, cut):
    damage(checkpoints(run)[-1] / "trainer.pt")  # so that its last step is taken again
    (file,) = run.glob("payloads/*.train-t000000.bin")
    if cut:
        file.write_bytes(file.read_bytes()[:10])
    else:
        file.unlink()
    said = refused()
    assert "finished rollouts (t0000" in said
    assert f"are gone or cut short in {file.name}" in said
    assert f"Restore these files in {run}/payloads from a copy" in said


def test_what_a_kill_left_and_a_damaged_checkpoint_cost_nothing_but_steps_that_are_taken_again(stopped, run):
    """And of two that resume at once one goes on; the other is refused."""
    older, newest = checkpoints(run)
    damage(newest / "trainer.pt")
    (run / "summary.json").write_text('{"outcome": "int')  # killed while it was written in place
    (run / "summary.json.new").write_text("{")
    (run / "life.json.4711").write_text("{")
    (run / "checkpoints" / ".partial-step-000099").mkdir()
    snapshots = run / "payloads" / "snapshots"
    (run.parent / "empty").mkdir()
    Store(snapshots).take(run.parent / "empty", {"rollout": "t000000.0"})
    with (run / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"seq": 99999, "comm\x00\x00')
    both = [stopped.start("resume", run) for _ in range(2)]
    ended = sorted((command.ended() for command in both), key=lambda end: end.code)
    assert [end.code for end in ended] == [0, 2], "\n".join(end.text for end in ended)
    assert str(run) in ended[1].refused()
    out = ended[0].out
    assert f"warning: checkpoint {newest} is damaged: the SHA-256 of trainer.pt is not the record's" in out
    assert f"going on from step {step_of(older)}: the steps up to {step_of(newest)} are taken again" in out
    assert Store(snapshots).snapshots() == {}
    assert stopped.check(run)["steps"] == STEPS
    assert json.loads((run / "summary.json").read_text())["outcome"] == "steps"


def test_an_edit_of_what_the_run_does_not_have_is_refused_too(run, refused):
    config = run / "config.toml"
    config.write_text(config.read_text() + "\n[source.more]\nweight = 1.0\n")
    assert "source.more is {" in refused()
