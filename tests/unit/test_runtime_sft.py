"""Supervised runs of a tiny model: their outcome, what breaks them off, and going on."""

import json
import os
import random
import re
import resource
import signal

import pytest
import torch

from headway.cli.main import main
from headway.models.checkpoint import verify
from headway.models.load import load_causal_lm
from headway.telemetry.supervised import RECORD, read_supervised
from headway.telemetry.supervised_progress import lowest_before_the_end
from headway.trainer.local import LocalTrainer
from tests.unit.made_run import tiny_base

CONFIG = """
[run]
name = "{name}"
dir = "{folder}/runs"
[model]
path = "{base}"
[sft]
data = "train.jsonl"
eval_data = "eval.jsonl"
epochs = 2
batch_size = 4
eval_every_steps = 3
[trainer]
threads = 1
learning_rate = 1e-3
full = true
[checkpoint]
every_steps = 2
keep = 9
"""
STEPS = 8  # 14 conversations in batches of 4, twice


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_base(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def write_data(folder):
    rng = random.Random(0)
    pairs = rng.sample([(a, b) for a in range(10) for b in range(10)], 18)
    lines = [json.dumps({"prompt": f"{a}+{b}=", "completion": str(a + b)}) for a, b in pairs]
    (folder / "train.jsonl").write_text("\n".join(lines[:14]))
    (folder / "eval.jsonl").write_text("\n".join(lines[14:]))


@pytest.fixture
def start(tmp_path, base):
    """Start a run by its name; returns exit code and directory."""
    write_data(tmp_path)

    def start(*overrides, name="one"):
        path = tmp_path / "sft.toml"
        path.write_text(CONFIG.format(name=name, folder=tmp_path, base=base))
        return main(["sft", str(path), *overrides]), tmp_path / "runs" / name

    return start


def weights(run):
    return {file.name: file.read_bytes() for file in sorted((run / "model").glob("*.safetensors"))}


def at_step(monkeypatch, number, act):
    """Call `act` with the trainer as it begins its step of this number, once."""
    original, done = LocalTrainer.step, []

    def step(self, rows, lr_scale=1.0):
        if self.steps + 1 == number and not done:
            done.append(number)
            act(self)
        return original(self, rows, lr_scale)

    monkeypatch.setattr(LocalTrainer, "step", step)


@pytest.mark.parametrize("form", ["trainer.full=true", "trainer.full=false"])
def test_a_run_learns_and_leaves_a_model(start, form, capsys):
    code, run = start(form, "trainer.lora_rank=4", "sft.epochs=3")
    assert code == 0
    out = capsys.readouterr().out
    assert f"complete after 12 steps; the model is in {run / 'model'}" in out
    assert re.search(r"train.jsonl: 14 conversations, \d+ tokens, \d+ trained", out)
    record = read_supervised(run)
    assert [step["step"] for step in record.steps] == list(range(1, 13))
    assert [one["step"] for one in record.evals] == [0, 3, 6, 9, 12]
    assert record.evals[-1]["loss"] < record.evals[0]["loss"]
    verify(run / "model")
    loaded = load_causal_lm(run / "model")
    ids = torch.tensor([[257, 117, 51, 258, 257, 97]])
    assert loaded(input_ids=ids).logits.isfinite().all()
    assert json.loads((run / "summary.json").read_text())["outcome"] == "complete"


def test_the_measured_loss_is_that_of_the_model(start, base, capsys):
    _, run = start("sft.steps=1")
    first = read_supervised(run).evals[0]
    model, total, num = load_causal_lm(base), 0.0, 0
    for line in (run.parents[1] / "eval.jsonl").read_text().splitlines():
        row = json.loads(line)
        prompt = [257, 117, *row["prompt"].encode(), 258, 257, 97]
        answer = [*row["completion"].encode(), 258]
        ids = torch.tensor([[*prompt, *answer]])
        labels = torch.tensor([[-100] * len(prompt) + answer])
        total += model(input_ids=ids, labels=labels).loss.item() * len(answer)
        num += len(answer)
    assert first["num_tokens"] == num
    assert first["loss"] == pytest.approx(total / num, rel=1e-5)


@pytest.mark.parametrize("form", ["trainer.full=true", "trainer.full=false"])
def test_ctrl_c_saves_and_resume_ends_with_the_weights_of_an_unbroken_run(start, form, monkeypatch, capsys):
    _, unbroken = start(form, name="unbroken")
    at_step(monkeypatch, 5, lambda trainer: os.kill(os.getpid(), signal.SIGINT))
    code, run = start(form, name="broken")
    assert code == 130
    assert "interrupted and saved" in capsys.readouterr().out
    assert read_supervised(run).ended["outcome"] == "interrupted"
    assert not (run / "model").exists()
    for name in ("train.jsonl", "eval.jsonl"):
        (run.parents[1] / name).unlink()  # its conversations are in the run
    assert main(["resume", str(run)]) == 0
    assert f"going on from step 5 of {STEPS}" in capsys.readouterr().out
    assert weights(run) == weights(unbroken) != {}
    losses = [[step["loss"] for step in read_supervised(path).steps] for path in (run, unbroken)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == STEPS


def test_a_run_that_died_goes_on_from_its_checkpoint(start, monkeypatch, capsys):
    _, unbroken = start(name="unbroken")

    def die(trainer):
        raise RuntimeError("gone")

    at_step(monkeypatch, 6, die)
    code, run = start(name="dead")
    assert code == 1
    with (run / RECORD).open("ab") as file:
        file.write(b'{"kind": "step", "t"')  # torn
    assert main(["report", str(run)]) == 0
    assert "RuntimeError('gone')" in capsys.readouterr().out
    (run / "checkpoints" / "step-000004" / "trainer.pt").write_bytes(b"damaged")
    assert main(["resume", str(run)]) == 0
    out = capsys.readouterr().out
    assert "step-000004 is incomplete: trainer.pt must have" in out
    assert "going on from step 2 of 8" in out
    assert weights(run) == weights(unbroken)


def test_a_complete_run_goes_on_with_more_epochs_only(start, capsys):
    code, run = start("sft.schedule=trainer")
    assert code == 0
    before = weights(run)
    assert main(["resume", str(run)]) == 0
    assert "is complete after 8 steps" in capsys.readouterr().out
    assert main(["resume", str(run), "trainer.learning_rate=1e-4"]) == 2
    assert "It goes on with a higher sft.epochs or sft.steps" in capsys.readouterr().err
    assert main(["resume", str(run), "sft.batch_size=2"]) == 2
    assert "the order of the data so far comes from it" in capsys.readouterr().err
    assert main(["resume", str(run), "sft.epochs=3"]) == 0
    assert "sft.epochs = 3 from now on (was 2)" in capsys.readouterr().out
    assert weights(run) != before
    code, straight = start("sft.schedule=trainer", "sft.epochs=3", name="straight")
    assert weights(run) == weights(straight)
    assert main(["report", str(run)]) == 0
    assert "sft.epochs = 3" in capsys.readouterr().out


def test_a_loss_that_is_not_finite_ends_the_run_with_its_rows(start, monkeypatch, capsys):
    def spoil(trainer):
        with torch.no_grad():
            next(iter(trainer._policy.trainable().values())).fill_(float("nan"))

    at_step(monkeypatch, 3, spoil)
    code, run = start()
    assert code == 2
    told = capsys.readouterr()
    assert f"the run stays in {run}; `headway resume {run} KEY=VALUE` goes on" in told.out
    (err,) = told.err.splitlines()
    assert err.startswith("error: loss and gradient must be finite; the loss of step 3 is not. Its first ")
    assert "train.jsonl:" in err
    assert "A lower sft.learning_rate may help" in err
    ended = read_supervised(run).ended
    assert ended["outcome"] == "failed"
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000002"]


def test_report_and_the_commands_that_take_no_supervised_run(start, tmp_path, capsys):
    _, run = start()
    capsys.readouterr()
    assert main(["report", str(run)]) == 0
    text = capsys.readouterr().out
    assert "supervised: complete" in text
    assert "8 of 8 steps, 2.00 epochs of 14 conversations, 4 to evaluate" in text
    assert max(map(len, text.splitlines())) <= 100
    assert main(["report", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 8
    others = (["replay", "--verify"], ["watch"], ["rollouts"], ["export", str(tmp_path / "out")])
    for name, *more in (*others, ["report", "--html", str(tmp_path / "r.html")]):
        assert main([name, str(run), *more]) == 2
        assert "is a supervised run" in capsys.readouterr().err


def test_an_evaluation_that_was_better_before_the_end_is_told():
    evals = [{"step": 0, "loss": 1.0}, {"step": 9, "loss": 0.0335}, {"step": 12, "loss": None}]
    last = {"step": 50, "loss": 0.0541}
    assert lowest_before_the_end([*evals, last]) == "evaluation was lowest at step 9: 0.0335; now 0.0541"
    assert lowest_before_the_end(evals) == ""
    assert lowest_before_the_end([evals[2]]) == lowest_before_the_end([]) == ""


def test_eval_data_that_is_trained_on_is_a_warning(start, tmp_path, capsys):
    assert start("sft.steps=1")[0] == 0
    assert "warning" not in capsys.readouterr().err
    lines = (tmp_path / "train.jsonl").read_text().splitlines()
    with (tmp_path / "eval.jsonl").open("a") as file:
        file.write("\n" + "\n".join(lines[:2]))
    assert start("sft.steps=1", name="two")[0] == 0
    warning = "warning: 2 of 6 conversations of sft.eval_data are in sft.data too"
    assert warning in capsys.readouterr().err


def test_bad_data_makes_no_run_directory(start, tmp_path, capsys):
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1="}\n')
    code, run = start()
    assert code == 2
    assert f"error: {tmp_path / 'train.jsonl'}:1: a line must have completion too" in capsys.readouterr().err
    assert not run.exists()
    write_data(tmp_path)
    assert start("sft.max_tokens=5000")[0] == 2
    assert "must be at most 1024, the model's longest context" in capsys.readouterr().err
    assert start("sft.data=no.jsonl")[0] == 2
    assert "command line: sft.data: the data file must exist" in capsys.readouterr().err
    assert not run.exists()


def test_a_run_that_is_going_on_is_not_resumed(start, monkeypatch, capsys):
    found = []
    at_step(
        monkeypatch, 2, lambda trainer: found.append(main(["resume", str(trainer._keeping.directory.parent)]))
    )
    start()
    assert found == [2]
    assert "is starting the run" in capsys.readouterr().err


@pytest.mark.parametrize("room", [1_000, 150_000])
def test_a_full_disk_ends_a_run_with_one_line_and_resume_goes_on(start, base, room, capsys):
    """The smaller limit stops the data's rows, the larger one the checkpoint or the model."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        code, run = start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    said = "".join(capsys.readouterr())
    assert code == 1
    assert "Traceback" not in said
    assert len(re.findall(r"^error: no room .*File too large", said, re.M)) == 1
    assert str(run) in said
    assert not (run / "life.json").exists()
    if (run / RECORD).is_file() and (run / RECORD).stat().st_size:
        assert read_supervised(run).ended["outcome"] == "failed"
        assert main(["resume", str(run)]) == 0
        _, unbroken = start(name="unbroken")
        assert weights(run) == weights(unbroken)


def test_all_weights_with_the_rate_of_lora_are_a_warning(start, capsys):
    start("trainer.learning_rate=", "sft.steps=1")
    assert "warning: trainer.learning_rate: every weight is trained" in capsys.readouterr().err
    start("trainer.learning_rate=", "sft.learning_rate=1e-5", "sft.steps=1", name="two")
    start("trainer.learning_rate=", "trainer.full=false", "sft.steps=1", name="three")
    assert "warning" not in capsys.readouterr().err
