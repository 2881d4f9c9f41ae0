"""Settings without effect: each row of the table warns, and stays silent where its keys act."""

from pathlib import Path

import pytest

from headway.cli.main import main
from headway.config.idle import TABLE, idle_settings
from headway.config.load import load_config
from headway.config.show import write_config

BASE = ("model.path=tiny", "environment.name=arithmetic")
FILES = sorted((Path(__file__).parents[2] / "examples").rglob("*.toml"))
EXAMPLES = [path for path in FILES if path.stem not in ("sft", "pyproject") and path.parent.name != "cases"]

JUDGE = ("judge.url=http://127.0.0.1:8000/v1", "judge.model=m")

ROWS = [
    (
        "generator.kv_on_update=keep",
        ("generator.numerics=exact",),
        'generator.numerics is "exact"',
        ["generator.numerics=fast"],
    ),
    (
        "trainer.replay_routing=false",
        ("generator.numerics=exact",),
        'generator.numerics is "exact"',
        ["generator.numerics=fast"],
    ),
    ("reward.group_timeout_s=9", (), 'reward.group is ""', ["reward.group=shorter"]),
    ("judge.weight=0.5", (), 'judge.url is ""', JUDGE),
    ("judge.pair_prompt='{first}{second}'", JUDGE, 'reward.group is ""', ["reward.group=pairwise"]),
    ("judge.per_turn=true", (*JUDGE, "judge.each=false"), "judge.each is false", ["judge.each=true"]),
    ("judge.pattern=(.)", JUDGE, 'judge.form is "json"', ["judge.form=pattern"]),
    (
        "judge.response_format=none",
        (*JUDGE, "judge.form=pattern"),
        'judge.form is "pattern"',
        ["judge.form=json"],
    ),
    ("judge.cache_dir=/x", (*JUDGE, "judge.cache=false"), "judge.cache is false", ["judge.cache=true"]),
    ("shaping.free_tokens=9", (), "shaping.token_penalty is 0.0", ["shaping.token_penalty=0.1"]),
    ("queue.max_updating_replicas=1", (), "generator.replicas is 1", ["generator.replicas=2"]),
    (
        "oversampling.when_met=finish",
        (),
        "oversampling.rollouts_extra is 0 and oversampling.groups_extra is 0",
        ["oversampling.rollouts_extra=1"],
    ),
    ("curriculum.explore=0.5", (), "curriculum.levels is []", ["curriculum.levels=[1,2]"]),
    ("curriculum.band_low=0.1", (), "curriculum.levels is []", ["source.a.levels=[1,2]"]),
    ("curriculum.retire_at=0.5", (), "curriculum.retire_after is 0", ["curriculum.retire_after=2"]),
    (
        "pruning.repetition_window=32",
        (),
        "pruning.max_repetition is not set",
        ["pruning.max_repetition=0.9"],
    ),
    (
        "pruning.min_turns=2",
        (),
        "pruning.value_threshold is not set",
        ["pruning.value_hook=operator:neg", "pruning.value_threshold=0.1"],
    ),
    (
        "pruning.audit=0.5",
        (),
        "pruning.max_tokens is 0 and pruning.max_repetition is not set and pruning.environment is false and "
        "pruning.value_threshold is not set",
        ["pruning.max_repetition=0.9"],
    ),
    ("concurrency.trim=longest", (), 'concurrency.mode is "fixed"', ["concurrency.mode=adaptive"]),
    ("control.min_gain=0.1", (), 'control.mode is "off"', ["control.mode=on"]),
    (
        "control.prune_quantile=0.9",
        ("control.mode=on",),
        'control.levers is ["depth", "running", "groups_extra", "rollouts_extra", "batch_wait"]',
        ["control.mode=on", 'control.levers=["depth","pruning"]'],
    ),
    (
        "control.kv_high=0.8",
        ("control.mode=on", 'control.levers=["depth"]'),
        'control.levers is ["depth"]',
        ["control.mode=on", 'control.levers=["running"]'],
    ),
    (
        "control.preempted=0.2",
        ("control.mode=on", "concurrency.mode=adaptive"),
        'concurrency.mode is "adaptive"',
        ["concurrency.mode=fixed"],
    ),
    ("queue.batch_wait_share=0.4", (), "queue.batch_wait_s is 0.0", ["queue.batch_wait_s=5"]),
    ("guard.min_reward=0.1", ("guard.action=off",), 'guard.action is "off"', ["guard.action=warn"]),
    ("guard.max_pause_s=9", (), 'guard.action is "warn"', ["guard.action=pause"]),
    ("guard.rollback_lr_scale=0.1", (), 'guard.action is "warn"', ["guard.action=rollback"]),
    (
        "staleness.down_weight=0.5",
        (),
        "staleness.down_weight_from is -1",
        ["staleness.down_weight_from=0"],
    ),
    (
        "staleness.trajectory=restart",
        (),
        "staleness.trajectory_bound is -1",
        ["staleness.trajectory_bound=1"],
    ),
    (
        "staleness.environment=drop",
        (),
        "staleness.environment_bound is -1",
        ["staleness.environment_bound=1"],
    ),
    ("checkpoint.keep_best=true", ("eval.num_tasks=0",), "eval.num_tasks is 0", ["eval.num_tasks=8"]),
    ("staleness.down_weight_from=2", (), "queue.bound is 2", ["queue.bound=3"]),
    (
        "eval.num_tasks=9",
        ("eval.at_start=false", "eval.at_end=false"),
        "eval.at_start is false and eval.at_end is false and eval.every_steps is 0",
        ["eval.every_steps=5"],
    ),
    (
        "pruning.max_tokens=512",
        (),
        "generator.max_context_tokens is 512",
        ["generator.max_context_tokens=513"],
    ),
    (
        "queue.batch_tokens=16384",
        (),
        "queue.batch_size is 32 and generator.max_context_tokens is 512",
        ["queue.batch_size=64"],
    ),
    ("partial.after_steps=2", (), 'partial.park is "never"', ["partial.park=batch"]),
    (
        "partial.train=newest",
        (),
        'partial.park is "never", except after a generator\'s death',
        ["concurrency.mode=adaptive"],
    ),
    (
        "algorithm.std_eps=0.1",
        ("algorithm.advantage=rloo",),
        'algorithm.advantage is "rloo"',
        ["algorithm.advantage=magistral"],
    ),
    (
        "algorithm.discount=0.9",
        (),
        'algorithm.advantage is "grpo"',
        ["algorithm.advantage=reinforce_pp_baseline"],
    ),
    (
        "algorithm.clip_high=0.28",
        ("algorithm.loss=decoupled",),
        'algorithm.loss is "decoupled"',
        ["algorithm.loss=grpo"],
    ),
    ("algorithm.importance_cap=4", (), 'algorithm.loss is "grpo"', ["algorithm.loss=aipo"]),
    ("algorithm.gspo_clip_low=0.1", (), 'algorithm.loss is "grpo"', ["algorithm.loss=gspo"]),
    ("algorithm.cispo_max_weight=4", (), 'algorithm.loss is "grpo"', ["algorithm.loss=cispo"]),
    ("algorithm.dppo_kl=0.1", (), 'algorithm.loss is "grpo"', ["algorithm.loss=dppo"]),
    ("algorithm.m2po_threshold=0.1", (), 'algorithm.loss is "grpo"', ["algorithm.loss=m2po"]),
    (
        "algorithm.clip_low=0.1",
        ("algorithm.correction=tis",),
        'algorithm.correction is "tis"',
        ["algorithm.correction=none"],
    ),
    (
        "algorithm.correction_level=sequence",
        (),
        'algorithm.correction is "none"',
        ["algorithm.correction=mis"],
    ),
    ("algorithm.tis_cap=3", (), 'algorithm.correction is "none"', ["algorithm.correction=tis"]),
    (
        "algorithm.mis_max=3",
        ("algorithm.correction=tis",),
        'algorithm.correction is "tis"',
        ["algorithm.correction=mis"],
    ),
    ("algorithm.icepop_max=3", (), 'algorithm.correction is "none"', ["algorithm.correction=icepop"]),
    ("algorithm.kl_estimator=k2", (), "algorithm.kl_coef is 0.0", ["algorithm.kl_coef=0.1"]),
    (
        "algorithm.constant_tokens=9",
        (),
        'algorithm.normaliser is "token-mean"',
        ["algorithm.normaliser=constant"],
    ),
    ("trainer.decay_steps=9", (), 'trainer.schedule is "constant"', ["trainer.schedule=linear"]),
    ("trainer.lora_rank=4", ("trainer.full=true",), "trainer.full is true", ["trainer.full=false"]),
    ("eval.temperature=1", ("eval.num_tasks=0",), "eval.num_tasks is 0", ["eval.num_tasks=4"]),
    ("stop.target_window=9", (), "stop.target_reward is 0.0", ["stop.target_reward=0.9"]),
]
"""A changed key, what else is set, why it does not act, and what makes it act."""


def warnings(*overrides):
    given = (*BASE, *overrides)
    return idle_settings(load_config(None, given), None, given)


@pytest.mark.parametrize(("changed", "others", "why", "remedy"), ROWS, ids=[row[0] for row in ROWS])
def test_a_changed_setting_without_effect_is_told_with_its_reason(changed, others, why, remedy):
    key = changed.partition("=")[0]
    assert warnings(*others, changed) == [f"warning: command line: {key} has no effect while {why}"]
    assert warnings(*others) == []
    assert not any(key in line for line in warnings(*others, changed, *remedy))


def test_every_row_of_the_table_is_tried():
    tried = {row[0].partition("=")[0] for row in ROWS}
    assert all(tried & set(row.full_keys) for row in TABLE)
    assert len(ROWS) >= len(TABLE)


def test_the_place_is_the_line_and_the_order_is_the_files(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        '[partial]\nmax_late_batches = 2\ntrain = "newest"\n[guard]\nmax_rollbacks = 3\nbaseline = 9\n'
        '[model]\npath = "tiny"\n[environment]\nname = "arithmetic"\n'
    )
    given = ("queue.max_updating_replicas=1",)
    lines = idle_settings(load_config(file, given), file, given)
    assert [line.partition(" has ")[0] for line in lines] == [
        f"warning: {file}:2: partial.max_late_batches",
        f"warning: {file}:3: partial.train",
        f"warning: {file}:5: guard.max_rollbacks",
        "warning: command line: queue.max_updating_replicas",
    ]


def test_a_key_at_its_default_never_warns_so_a_printed_config_warns_of_no_more(tmp_path):
    assert warnings("partial.train=all", "algorithm.tis_cap=2.0", "oversampling.when_met=cancel") == []
    given = (*BASE, "curriculum.levels=[2,3]", "source.a.weight=1", "source.b.environment=python-code")
    config = load_config(None, given)
    write_config(config, tmp_path / "printed.toml")
    printed = tmp_path / "printed.toml"
    assert idle_settings(load_config(printed), printed) == []


def test_a_function_of_ones_own_may_read_every_setting_of_the_algorithm():
    changed = ("algorithm.clip_low=0.1", "algorithm.tis_cap=3", "algorithm.discount=0.9")
    assert warnings("algorithm.advantage=operator:sub", *changed) == []


def test_levels_of_a_source_that_the_curriculum_overrules_are_told():
    source = ("source.a.args.levels=[1]", "source.b.args.levels=[2,1]")
    assert warnings(*source) == []
    assert warnings(*source, "curriculum.levels=[1,2]") == [
        "warning: command line: source.a.args.levels has no effect while curriculum.levels is [1, 2]"
    ]
    assert warnings(*source, "source.a.levels=[3]") == [
        "warning: command line: source.a.args.levels has no effect while source.a.levels is [3]"
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=[f"{path.parent.name}/{path.stem}" for path in EXAMPLES])
def test_the_examples_warn_of_nothing(path):
    assert idle_settings(load_config(path), path) == []


def test_the_lines_go_to_stderr_and_the_exit_code_stays(capsys):
    tiny = next(str(path) for path in EXAMPLES if path.name == "tiny.toml")
    assert main(["train", tiny, "--print-config", "partial.after_steps=2"]) == 0
    out, err = capsys.readouterr()
    assert "warning" not in out
    assert err == ('warning: command line: partial.after_steps has no effect while partial.park is "never"\n')
