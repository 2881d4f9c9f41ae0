"""The environment `dataset`: rows, splits, verifiers by name, a reward of one's own."""

import asyncio
import gzip
import json

import pytest

from headway.core.errors import ConfigError, EnvironmentSetupError, HeadwayError, RewardFault, UserError
from headway.core.protocols import Outcome
from headway.environments.dataset.rewards import judge
from headway.environments.registry import build

SUMS = [
    {"question": f"{a}+{b}=", "answer": a + b, "level": 1 + (a > 4)} for a in range(10) for b in range(10)
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def sums(tmp_path):
    return write(tmp_path / "sums.jsonl", SUMS)


def made(data, reward="number", seed=0, **args):
    return build("dataset", {"data": data, "reward": reward, **args}, seed)


def asked(environment, split):
    return [
        environment.task(split, at, None).payload["question"] for at in range(environment.num_tasks(split))
    ]


def scored(environment, reply, split="train", index=0):
    task = environment.task(split, index, None)
    return asyncio.run(environment.score(task, Outcome({"reply": reply}), None))


def test_a_share_is_held_out_and_stays_so_whatever_else_the_data_holds(sums, tmp_path):
    environment = made(sums)
    train, held_out = asked(environment, "train"), asked(environment, "eval")
    assert sorted(train + held_out) == sorted(row["question"] for row in SUMS)
    assert 3 <= len(held_out) <= 20
    assert sorted(asked(made(sums, seed=1), "eval")) == sorted(held_out)
    assert asked(made(sums, seed=1), "train") != train
    assert asked(made(sums, seed=0), "train") == train
    half = made(write(tmp_path / "half.jsonl", SUMS[:50]))
    assert set(asked(half, "eval")) == set(held_out) & {row["question"] for row in SUMS[:50]}


def test_splits_by_a_column_and_by_files(sums, tmp_path):
    rows = [row | {"part": "test" if row["level"] == 2 else "train"} for row in SUMS]
    by_column = made(write(tmp_path / "parts.jsonl", rows), split_column="part", num_eval=7)
    assert (by_column.num_tasks("train"), by_column.num_tasks("eval")) == (50, 7)
    other = write(tmp_path / "other.jsonl", SUMS[:3] + SUMS[:2])
    by_file = made(sums, eval_data=other)
    assert (by_file.num_tasks("train"), by_file.num_tasks("eval")) == (100, 5)
    dropped = made(sums, eval_data=other, duplicates="drop")
    assert (dropped.num_tasks("train"), dropped.num_tasks("eval"), dropped.num_dropped) == (97, 3, 5)


def test_a_level_is_asked_for(sums):
    environment = made(sums, level="level")
    tasks = [environment.task("train", index, 2) for index in range(30)]
    assert {task.level for task in tasks} == {2}
    assert environment.task("train", 7, 2).payload == environment.task("train", 7, 2).payload
    with pytest.raises(EnvironmentSetupError, match="no train row of this level; it has 1, 2"):
        environment.task("train", 0, 3)


def test_levels_with_names_templates_and_patterns(tmp_path):
    rows = [
        {"q": f"{n}", "hard": "hard" if n > 4 else "easy", "solution": f"so\n#### {n}"} for n in range(10)
    ]
    data = write(tmp_path / "a.jsonl", rows)
    environment = made(
        data, level="hard", level_names=["easy", "hard"], template="Say {q}!", answer_pattern="#### (.+)",
        reply_pattern="is ([0-9]+)", eval_share=0.0, shuffle=False, system="Be brief.",
    )  # fmt: skip
    task = environment.task("train", 7, None)
    assert (task.level, environment.prompt(task)[0].content, environment.system_prompt) == (
        2,
        "Say 7!",
        "Be brief.",
    )
    assert scored(environment, "it is 3, no, it is 7", index=7).score == 1
    assert scored(environment, "7", index=7).reasons == ("the reply does not match reply_pattern",)
    assert environment.place("train", 7) == f"{data}:8"


def test_messages_are_a_prompt_and_their_last_answer_the_right_one(tmp_path):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    data = write(tmp_path / "a.jsonl", [{"messages": [*messages, {"role": "assistant", "content": "A"}]}] * 3)
    environment = made(data, "exact", eval_share=0)
    assert [message.role for message in environment.prompt(environment.task("train", 0, None))] == [
        "system",
        "user",
    ]
    assert scored(environment, " A ").score == 1
    bad = write(tmp_path / "b.jsonl", [{"messages": [{"role": "assistant", "content": "A"}, *messages]}])
    with pytest.raises(ConfigError, match="the role of message 0 of a prompt must be one of"):
        made(bad, "exact")


def test_bad_rows_are_told_at_once_with_their_lines(tmp_path):
    data = tmp_path / "bad.jsonl"
    data.write_text('{"prompt": "a", "answer": "1"}\n\n{"prompt": 3, "answer": "1"}\nno\n{"prompt": "b"}\n')
    with pytest.raises(ConfigError) as caught:
        made(str(data))
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"{data}:{at}" for at in (3, 4, 5)]
    assert "must be a text" in lines[0]
    assert "not valid JSON" in lines[1]
    assert "must have the right answer in the column answer" in lines[2]
    data.write_text('{"prompt": "a", "answer": "no number"}\n')
    with pytest.raises(ConfigError, match=r"bad.jsonl:1: the right answer must hold a number"):
        made(str(data), eval_share=0)


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        ("NaN", "hold a number"),
        ("1e999", "hold a number"),
        ("1" + "0" * 400, "hold a number"),
        ('"1' + "0" * 400 + '"', "hold a number"),
        ("true", "hold a number"),
        ("[1, 2]", "be a text or a number"),
        ('{"a": 1}', "be a text or a number"),
        ("null", "column answer .* It is null there"),
        ('"\\ud800"', "no half of a character"),
        ('" "', "not be empty"),
        ('1, "answer": 2', "must stand once in a JSON object"),
        ('1, "more": {"a": 1, "a": 2}', "must stand once"),
    ],
)
def test_a_right_answer_that_nothing_can_equal_is_told_with_its_line(tmp_path, answer, rule):
    data = tmp_path / "bad.jsonl"
    data.write_text('{"prompt": "a", "answer": 1}\n{"prompt": "b", "answer": ' + answer + "}\n")
    with pytest.raises(ConfigError, match=f"bad.jsonl:2: .* {rule}") as caught:
        made(str(data), eval_share=0)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("verifier", ["contains", "exact", "regex"])
def test_an_empty_answer_that_is_always_or_never_right_is_refused(tmp_path, verifier):
    data = tmp_path / "bad.jsonl"
    data.write_text('{"prompt": "a", "answer": ""}\n')
    with pytest.raises(ConfigError, match=r"bad.jsonl:1: the right answer must not be empty"):
        made(str(data), verifier, eval_share=0)


def test_prompts_of_blanks_and_compressed_files_are_told(tmp_path):
    data = tmp_path / "bad.jsonl"
    data.write_text('{"prompt": " ", "answer": "1"}\n')
    with pytest.raises(ConfigError, match=r"bad.jsonl:1: prompt must be a text"):
        made(str(data))
    data.write_bytes(gzip.compress(b'{"prompt": "a", "answer": "1"}\n'))
    with pytest.raises(UserError, match=r"it is compressed .*bad.jsonl.*Unpack it"):
        made(str(data))
    packed = data.rename(tmp_path / "bad.jsonl.gz")
    with pytest.raises(EnvironmentSetupError, match="the data must be unpacked"):
        made(str(packed))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"reward": "numbr"}, "reward: must be one of .* Did you mean number?"),
        ({"reward": "gone.py:f"}, "reward: the file does not exist"),
        ({"prompt": "qestion"}, "prompt: the data has no column qestion .* Did you mean question?"),
        ({"reply_pattern": "x"}, "reply_pattern: must have a group"),
        ({"template": "{}"}, "template: must name a column"),
        ({"eval_data": "gone.jsonl"}, "eval_data: the data file must exist"),
        ({"data": "data.csv"}, "data: the data"),
    ],
)
def test_what_is_wrong_with_the_arguments(sums, args, message):
    with pytest.raises(HeadwayError, match=f"environment.args.{message}"):
        made(**({"data": sums} | args))


@pytest.mark.parametrize(
    ("verifier", "answer", "value", "right"),
    [
        ("number", "it is 1,000.", 1000, True),
        ("number", "it is 1,000.5", "1000", False),
        ("exact", " a\n b", "a b", True),
        ("exact", "A b", "a b", False),
        ("contains", "Surely PARIS!", "Paris", True),
        ("choice", "(A) no; the answer is (b).", "B", True),
        ("choice", "I think C", "B", False),
        ("regex", "ab12", r"\d+", True),
    ],
)
def test_verifiers(verifier, answer, value, right):
    reward = judge(verifier, answer, value)
    assert (reward.score, reward.reasons[0] == "right") == (float(right), right)


OWN = """
import asyncio, threading
from headway.core.records import Reward

def plain(answer, row):
    assert threading.current_thread() is not threading.main_thread()
    return answer == str(row["answer"]), "said " + answer

async def later(answer, row):
    await asyncio.sleep(0)
    return Reward(0.5, ("half",), {"length": len(answer)})

def raises(answer, row):
    raise ValueError("no")

def leaves(answer, row):
    raise SystemExit(3)

def words(answer, row):
    return "good"
"""


def test_a_reward_of_ones_own_runs_off_the_event_loop(sums, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(OWN)
    plain = made(sums, f"{own}:plain", shuffle=False, eval_share=0)
    assert scored(plain, "0") == scored(plain, "0")
    assert (scored(plain, "0").score, scored(plain, "1").reasons) == (1.0, ("said 1",))
    later = scored(made(sums, f"{own}:later"), "abc")
    assert (later.score, later.metrics) == (0.5, {"length": 3})
    with pytest.raises(ValueError, match="no"):
        scored(made(sums, f"{own}:raises"), "x")
    for name in ("leaves", "words"):
        with pytest.raises(RewardFault):
            scored(made(sums, f"{own}:{name}"), "x")
    own.with_name("two.py").write_text("def f(answer): return 1\n")
    with pytest.raises(EnvironmentSetupError, match="must be callable as"):
        made(sums, f"{own.with_name('two.py')}:f")


async def test_a_slow_reward_holds_up_nobody(sums, tmp_path):
    (tmp_path / "slow.py").write_text(
        "import threading\ngo = threading.Event()\ndef f(answer, row):\n    go.wait(60)\n    return 1.0\n"
    )
    environment = made(sums, f"{tmp_path}/slow.py:f")
    task = environment.task("train", 0, None)
    slow = [environment.score(task, Outcome({"reply": "x"}), None) for _ in range(3)]
    waiting = asyncio.gather(*slow)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    environment._own._function.__globals__["go"].set()
    assert [reward.score for reward in await waiting] == [1.0, 1.0, 1.0]


def test_parquet_and_saved_datasets_are_the_same_rows(sums, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.Table.from_pylist(SUMS), tmp_path / "sums.parquet")
    assert asked(made(str(tmp_path / "sums.parquet")), "train") == asked(made(sums), "train")
    assert made(str(tmp_path / "sums.parquet")).place("train", 0).startswith(f"{tmp_path}/sums.parquet, row ")
    folder = tmp_path / "folder"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(SUMS[:60]), folder / "0.parquet")
    pq.write_table(pa.Table.from_pylist(SUMS[60:]), folder / "1.parquet")
    assert asked(made(str(folder)), "eval") == asked(made(sums), "eval")


def test_a_dataset_that_was_saved_has_splits(tmp_path):
    datasets = pytest.importorskip("datasets")
    parts = {"train": datasets.Dataset.from_list(SUMS[:60]), "test": datasets.Dataset.from_list(SUMS[60:])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    environment = made(str(tmp_path / "saved"), eval_split="test")
    assert (environment.num_tasks("train"), environment.num_tasks("eval")) == (60, 40)
    with pytest.raises(
        EnvironmentSetupError, match=r"the splits train, test \(got 'tets'\). Did you mean test"
    ):
        made(str(tmp_path / "saved"), eval_split="tets")


def test_every_one_of_many_rows_is_a_task(tmp_path):
    data = write(tmp_path / "many.jsonl", ({"prompt": f"n{n}", "answer": n} for n in range(20_000)))
    environment = made(data)
    assert environment.num_tasks("train") + environment.num_tasks("eval") == 20_000
