"""Settings that change between the stages of a run: which may, which may not, and what follows."""

import pytest

from headway.config.compose import Config
from headway.config.load import load_config
from headway.config.show import write_config
from headway.config.stages import FIXED, at_this_stage, change
from headway.core.errors import ConfigError
from headway.core.schema import keys_of, sections_of


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "config.toml"
    write_config(load_config(None, ["model.path=tiny", "environment.name=arithmetic"]), path)
    return path


def refused(file, *overrides):
    with pytest.raises(ConfigError) as caught:
        change(file, (), overrides)
    return [str(problem) for problem in caught.value.problems]


def test_changes_are_applied_in_order_and_only_what_differs_is_one(file):
    earlier = [("stop.steps", 50), ("queue.bound", 4), ("stop.steps", 60)]
    assert at_this_stage(file, earlier).stop.steps == 60
    overrides = ["queue.bound=4", "trainer.learning_rate=1e-4", "stop.steps=70", "eval.num_tasks="]
    config, changes = change(file, earlier, overrides)
    assert changes == [("trainer.learning_rate", 1e-4), ("stop.steps", 70)]
    assert (config.queue.bound, config.stop.steps, config.trainer.learning_rate) == (4, 70, 1e-4)


def test_a_value_that_is_left_empty_is_the_default_again(file):
    config, changes = change(file, [("queue.bound", 7)], ["queue.bound="])
    assert changes == [("queue.bound", 2)]
    assert config.queue.bound == 2


def test_settings_that_need_one_another_change_together(file):
    config, changes = change(file, (), ["queue.batch_size=30", "queue.group_size=6"])
    assert changes == [("queue.batch_size", 30), ("queue.group_size", 6)]
    assert config.queue.batch_groups == 5


def test_a_users_own_file_is_named_by_its_absolute_path(file, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def loss(*args):\n    return args\n")
    monkeypatch.chdir(tmp_path)
    _, changes = change(file, (), ["algorithm.loss=mine.py:loss"])
    assert changes == [("algorithm.loss", f"{tmp_path}/mine.py:loss")]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.path=smollm2", "model.path: may not change after the run began: the checkpoints are of this"),
        ("run.seed=3", "run.seed: may not change after the run began: the order of the tasks"),
        ("environment.args.levels=[2]", "environment.args.levels: may not change after the run began"),
        ("trainer.lora_rank=4", "(got 4). Leave it out, or begin a new run with it"),
        ("telemetry.solved_reward=0.5", "telemetry.solved_reward: may not change"),
    ],
)
def test_what_exists_and_rests_on_a_setting_keeps_it_fixed(file, override, words):
    (problem,) = refused(file, override)
    assert words in problem


def test_every_problem_is_told_at_once(file):
    problems = refused(file, "run.seed=1", "queue.bond=3", "queue.bound=-1", "nonsense")
    assert len(problems) == 4
    text = "\n".join(problems)
    assert "Did you mean queue.bound?" in text
    assert "command line: queue.bound: must be at least 0 (got -1)" in text
    assert "an override must have the form key=value" in text


def test_fixed_names_are_sections_and_keys_that_exist():
    sections = sections_of(Config)
    for name in FIXED:
        section, _, key = name.partition(".")
        assert section in sections
        assert not key or key in keys_of(sections[section])


def test_a_part_of_a_table_changes_the_table(file):
    _, changes = change(file, [], ["queue.group_size_by_level.3=16"])
    assert changes == [("queue.group_size_by_level", {"3": 16})]


def test_sources_stay_as_they_are(file):
    (problem,) = refused(file, "source.easy.weight=0.5")
    assert "may not change after the run began: the mix so far" in problem
