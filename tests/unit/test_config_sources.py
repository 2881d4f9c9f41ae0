"""Sections [source.NAME]: any number, each checked like every other section."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from headway.config.load import load_config
from headway.config.scheduler import scheduler_settings
from headway.config.show import write_config
from headway.core.commands import RequestTask
from headway.core.errors import ConfigError, EnvironmentSetupError
from headway.core.events import TaskOffered
from headway.runtime.environment_worker import build_all, check_levels
from headway.runtime.tasks import make, offer

TEXT = """
[model]
path = "tiny"
[environment]
name = "arithmetic"
args = { levels = [1, 2], style = "question" }
[source.sums]
args = { levels = [1] }
weight = 0.7
[source.code]
environment = "python-code"
weight = 0.3
group_size = 16
"""


def load(folder: Path, text: str = TEXT, *overrides: str):
    file = folder / "run.toml"
    file.write_text(text)
    return load_config(file, overrides)


def test_a_source_of_the_same_environment_starts_from_its_arguments(tmp_path):
    config = load(tmp_path)
    assert list(config.source) == ["sums", "code"]
    assert (config.source["sums"].args["levels"], config.source["sums"].args["style"]) == ([1], "question")
    assert "style" not in config.source["code"].args
    sources = scheduler_settings(config).sources
    assert [(s.name, s.weight, s.group_size) for s in sources] == [("sums", 0.7, 0), ("code", 0.3, 16)]


def test_a_written_config_loads_to_an_equal_one(tmp_path):
    config = load(tmp_path)
    write_config(config, tmp_path / "again.toml")
    assert load_config(tmp_path / "again.toml") == config


def test_an_override_changes_one_source_or_adds_one(tmp_path):
    config = load(tmp_path, TEXT, "source.sums.weight=2", "source.more.weight=1")
    assert {name: source.weight for name, source in config.source.items()} == {
        "sums": 2.0,
        "code": 0.3,
        "more": 1.0,
    }


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "wieght = 1.0",
            ":14: source.code.wieght: is not a setting (got 1.0). Did you mean source.code.weight?",
        ),
        ("weight = -1.0", ":14: source.code.weight: must be at least 0"),
        ('args = { kind = "no" }', ":14: source.code.args.kind: must be"),
        ("[source.a:b]", ":14: source.a:b: the name of a section consists of letters, digits, - and _"),
    ],
)
def test_a_fault_is_told_with_its_key_and_line(tmp_path, line, problem):
    text = TEXT.replace("weight = 0.3\n", "").rstrip() + f"\n{line}\n"
    if line.startswith("[source.a"):
        text = text.replace("[source.a:b]", '[source."a:b"]')
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text.replace("group_size = 16\n", "group_size = 16\n\n"))
    assert problem.partition(": ")[2] in str(caught.value.problems[0])


def test_somebody_must_be_asked(tmp_path):
    with pytest.raises(ConfigError, match="at least one source must have a weight above 0"):
        load(tmp_path, TEXT, "source.sums.weight=0", "source.code.weight=0")


def test_a_source_that_is_no_section_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"must be a section, written \[source.sums\]"):
        load(tmp_path, TEXT.partition("[source.sums]")[0] + "[source]\nsums = 3\n")


def test_extra_groups_that_are_kept_need_room_below_the_bound(tmp_path):
    keep = ("oversampling.groups_extra=2", 'oversampling.when_met="finish"')
    with pytest.raises(ConfigError, match=r"depth 2 and 1 more batches \(2 groups\) exceed queue.bound 2"):
        load(tmp_path, TEXT, *keep)
    assert load(tmp_path, TEXT, *keep, "queue.depth=1").oversampling.groups_extra == 2


@pytest.mark.parametrize("when_met", ["finish", "park"])
@pytest.mark.parametrize(
    "given",
    [
        (), ("queue.bound=0",), ("queue.depth=2",), ("queue.publish_every=3",),
        ("oversampling.groups_extra=11",),
    ],
    ids=str,
)  # fmt: skip
def test_the_room_for_extra_groups_is_what_the_error_says(tmp_path, given, when_met):
    keep = ("oversampling.groups_extra=2", f'oversampling.when_met="{when_met}"', *given)
    with pytest.raises(ConfigError, match="more batches") as caught:
        load(tmp_path, TEXT, *keep)
    told = re.search(r"Use (.*), or oversampling", str(caught.value))
    assert told is not None
    load(tmp_path, TEXT, *keep, *(setting.replace(" ", "") for setting in told[1].split(" and ")))


@pytest.mark.parametrize("key", ["trainer.micro_batch_tokens", "trainer.lora_rank", "generator.max_running"])
def test_a_size_of_tensors_has_an_upper_bound(tmp_path, key):
    with pytest.raises(ConfigError, match=f"{key}: must be at least 1 and at most "):
        load(tmp_path, TEXT, f"{key}={10**23}")


def test_the_tasks_of_a_source_name_it_and_any_worker_can_make_them_again(tmp_path):
    environments = build_all(load(tmp_path))
    offered = offer(environments, RequestTask(7, "sums", "train", 3, None))
    assert offered == TaskOffered(7, "sums:train/3", 1, 0)
    task = make(environments, "sums:train/3")
    assert (task.id, task.payload) == ("sums:train/3", environments["sums"].task("train", 3, None).payload)
    assert offer(environments, RequestTask(8, "", "eval", 0, None)).task_id == "eval/0"  # pyright: ignore
    assert make(environments, "code:train/0/3").level == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "[curriculum]\nlevels = [1, 9]\n",
            ":8: curriculum.levels: levels of the environment arithmetic must be at least 1 and at most 4 "
            "(got [1, 9]). Leave out the others",
        ),
        (
            '[source.code]\nenvironment = "python-code"\nlevels = [3, 4]\n',
            ":9: source.code.levels: levels of the environment python-code must be at least 1 and at most 3 "
            "(got [3, 4]). Leave out the others",
        ),
        (
            '[source.code]\nenvironment = "python-code"\n[curriculum]\nlevels = [4]\n',
            ":10: curriculum.levels: levels of the environment python-code must be at least 1 and at most 3 "
            "(got [4]). Leave out the others",
        ),
    ],
)
def test_a_level_that_a_built_in_environment_does_not_have_is_told_with_its_line(tmp_path, text, problem):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, TEXT.partition("[source.sums]")[0] + text)
    assert [str(found) for found in caught.value.problems] == [f"{tmp_path / 'run.toml'}{problem}"]


def test_a_level_that_any_environment_does_not_have_is_told_before_the_run(tmp_path):
    base = TEXT.partition("[source.sums]")[0]
    config = load(tmp_path, base)
    config = dataclasses.replace(config, curriculum=dataclasses.replace(config.curriculum, levels=(1, 9)))
    with pytest.raises(EnvironmentSetupError, match="has no task of level 9") as caught:
        check_levels(build_all(config), config)
    assert caught.value.key == "curriculum.levels"
