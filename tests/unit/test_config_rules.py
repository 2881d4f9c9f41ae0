"""The real configuration: required keys, rules between sections, the environment's own arguments."""

from pathlib import Path

import pytest

from headway.algorithms.advantages import ADVANTAGES, as_advantage
from headway.algorithms.losses import LOSSES, as_policy_loss
from headway.algorithms.settings import AlgorithmSettings
from headway.config.compose import EXAMPLES, Config
from headway.config.load import load_config, load_sft_config
from headway.config.rules import NEED_WHOLE_BATCH
from headway.core.errors import ConfigError
from headway.core.schema import keys_of, sections_of

ROOT = Path(__file__).parents[2]
BASE = ("model.path=tiny", "environment.name=arithmetic")
CODE = ("model.path=tiny", "environment.name=python-code")


def problems(*overrides):
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides)
    return [str(problem).removeprefix("command line: ") for problem in caught.value.problems]


def test_every_key_has_a_description_and_every_required_key_an_example():
    for section, settings in sections_of(Config).items():
        for name, key in keys_of(settings).items():
            assert len(key.doc) > 10, f"{section}.{name} needs a description"
            assert key.is_required == (f"{section}.{name}" in EXAMPLES)
            if key.is_optional:
                assert key.default is None, "TOML has no null, so unset must be the default"


def test_what_is_required():
    assert [problem.partition(": is required: ")[0] for problem in problems()] == [
        "model.path",
        "environment.name",
    ]


@pytest.mark.parametrize(
    "advantage", ["grpo", "dr_grpo", "rloo", "maxrl", "magistral", "reinforce_pp_baseline"]
)
def test_group_size_1_with_a_group_estimator(advantage):
    assert problems(*BASE, "queue.group_size=1", f"algorithm.advantage={advantage}") == [
        "queue.group_size: group size 1 with a group estimator: must be at least 2 when "
        f'algorithm.advantage is "{advantage}", which compares the rollouts of a group (got 1). '
        "Use queue.group_size = 8"
    ]


def test_group_size_1_with_an_advantage_of_ones_own():
    config = load_config(None, (*BASE, "queue.group_size=1", "algorithm.advantage=operator:sub"))
    assert config.queue.group_size == 1


def test_an_estimator_over_the_batch_keeps_every_group():
    chosen = (*BASE, "algorithm.advantage=reinforce_pp")
    (problem,) = problems(*chosen)
    assert problem.startswith("queue.drop_zero_advantage: must be false when algorithm.advantage is ")
    assert not load_config(None, (*chosen, "queue.drop_zero_advantage=false")).queue.drop_zero_advantage


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("algorithm.loss", "m2po"),
        ("algorithm.advantage", "magistral"),
        ("algorithm.advantage", "reinforce_pp_baseline"),
    ],
)
def test_a_step_that_needs_the_whole_batch_cannot_begin_before_it_is_there(key, name):
    (problem,) = problems(*BASE, "queue.stream=true", f"{key}={name}")
    assert problem.startswith(f'queue.stream: must be false when {key} is "{name}", which needs the whole')
    assert not load_config(None, [*BASE, f"{key}={name}"]).queue.stream


def test_the_functions_that_need_the_whole_batch_are_those_with_a_batch_half():
    """Written down in `rules`, which may not load them."""
    named = NEED_WHOLE_BATCH["algorithm.advantage"]
    found = [name for name in ADVANTAGES.names if as_advantage(ADVANTAGES.load(name)).batch is not None]
    assert sorted(named) == found
    losses = [name for name in LOSSES.names if as_policy_loss(LOSSES.load(name)).batch is not None]
    assert sorted(NEED_WHOLE_BATCH["algorithm.loss"]) == losses


def test_supervised_training_has_one_process():
    with pytest.raises(ConfigError, match="must be 1 for `headway sft`"):
        load_sft_config(None, ["model.path=tiny", "sft.data=x.jsonl", "trainer.ranks=2"])


def test_a_kl_penalty_needs_lora():
    (problem,) = problems(*BASE, "algorithm.kl_coef=0.1", "trainer.full=true")
    assert problem.startswith("algorithm.kl_coef: must be 0 when trainer.full is true")


def test_a_name_of_the_family_that_is_nearly_right():
    (problem,) = problems(*BASE, "algorithm.correction=icepopp")
    assert problem.startswith("algorithm.correction: must be a known correction (got 'icepopp'). ")
    assert "Did you mean 'icepop'? Choose one of icepop, mis, none, tis" in problem


def test_batch_size_that_is_no_multiple_of_the_group_size():
    assert problems(*BASE, "queue.group_size=8", "queue.batch_size=30") == [
        "queue.batch_size: batch_size must be a multiple of group_size (8) (got 30). Use 24 or 32"
    ]


def test_depth_beyond_the_bound():
    (problem,) = problems(*BASE, "queue.depth=3", "queue.bound=1")
    assert problem.startswith("queue.depth: ")
    assert "(1)" in problem
    assert "(got 3)" in problem


def test_an_answer_as_long_as_the_context():
    (problem,) = problems(*BASE, "generator.max_answer_tokens=64", "generator.max_context_tokens=64")
    assert problem.startswith("generator.max_answer_tokens: ")
    assert "(got 64)" in problem


def test_truncated_sampling_can_be_trained_and_its_bounds_hold():
    load_config(None, (*BASE, "generator.top_p=0.9", "generator.top_k=5", "generator.min_p=0.1"))
    assert problems(*BASE, "generator.top_p=1.5", "generator.top_k=-1", "generator.min_p=2") == [
        "generator.top_p: must be above 0 and at most 1 (got 1.5)",
        "generator.top_k: must be at least 0 (got -1)",
        "generator.min_p: must be at least 0 and at most 1 (got 2)",
    ]
    rule = "ids that top_k keeps are recorded, at most max_kept_ids = 64 a token"
    assert problems(*BASE, "generator.top_k=65", "generator.max_kept_ids=64") == [
        f"generator.top_k: {rule} (got 65). Lower top_k or raise max_kept_ids"
    ]


def test_greedy_training_is_refused():
    assert problems(*BASE, "generator.temperature=0") == [
        "generator.temperature: must be above 0: greedy rollouts of a group are all alike and carry no "
        "signal (got 0.0). Use 1.0; eval.temperature sets evaluation's own"
    ]


def test_periodic_evaluation_without_tasks():
    assert problems(*BASE, "eval.num_tasks=0", "eval.every_steps=5") == [
        "eval.num_tasks: must be at least 1 when eval.every_steps is 5 (got 0). "
        "Use 64, or eval.every_steps = 0"
    ]
    assert load_config(None, (*BASE, "eval.num_tasks=0")).eval.num_tasks == 0


def test_a_silence_shorter_than_two_heartbeats():
    assert problems(*BASE, "run.heartbeat_s=2", "run.lost_after_s=3") == [
        "run.lost_after_s: must be at least twice run.heartbeat_s (2) (got 3.0). Use 4 or more"
    ]


def test_an_unknown_environment():
    (problem,) = problems("model.path=tiny", "environment.name=python-cod")
    assert problem.startswith(
        "environment.name: no such environment (got 'python-cod'). Did you mean python-code? "
    )


def test_the_environments_arguments_are_checked_like_any_key():
    given = [f"environment.args.{text}" for text in ("kind=outptu", "turns='2'", "lvels=[1]", "num_eval=0")]
    assert problems(*CODE, *given) == [
        'environment.args.kind: must be "output" or "function" (got \'outptu\'). Did you mean "output"?',
        "environment.args.turns: must be an integer (got '2'). Write it without quotes",
        "environment.args.lvels: is not an argument of the environment python-code (got [1]). "
        "Did you mean levels?",
        "environment.args.num_eval: must be at least 1 (got 0)",
    ]
    assert problems(*CODE, "environment.args.levels=[]") == [
        "environment.args.levels: must name at least one (got [])"
    ]


def test_an_argument_is_found_on_its_line(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[model]\npath = "tiny"\n[environment]\nname = "arithmetic"\nargs.style = "bear"\n')
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == (
        f'{path}:5: environment.args.style: must be "bare" or "question" (got \'bear\'). Did you mean "bare"?'
    )


def test_arguments_are_completed_with_the_environments_defaults():
    config = load_config(None, (*BASE, "environment.args.levels=[3]"))
    assert config.environment.args == {"style": "bare", "levels": [3], "num_eval": 64}


OWN = '''
from dataclasses import dataclass
@dataclass(frozen=True)
class Arguments:
    size: int
    limit: int | None = None
class Own:
    """Mine."""
    settings_type = Arguments
    name, resume, needs_sandbox, stop_strings, system_prompt = "own", "restart", False, (), None
    def num_tasks(self, split): ...
    def task(self, split, index, level): ...
    def prompt(self, task): ...
    async def rollout(self, task, chat, sandbox): ...
    async def score(self, task, outcome, sandbox): ...
'''


def test_an_environment_of_ones_own_in_a_file(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    name = f"environment.name={file}"
    config = load_config(None, ("model.path=tiny", name, "environment.args.size=3"))
    assert config.environment.args == {"size": 3}
    (problem,) = problems("model.path=tiny", name)
    assert problem.startswith("environment.args.size: is required by the environment ")


def test_rewards_of_turns_are_needed_and_no_built_in_environment_gives_them(tmp_path):
    process = "algorithm.advantage=process"
    assert problems(*BASE, process) == [
        'algorithm.advantage: cannot be "process" with the environment arithmetic, whose rewards say nothing '
        "of turns (got 'process'). Use \"grpo\", judge.per_turn = true, or an environment of your own"
    ]
    own = ("model.path=tiny", f"environment.name={ROOT / 'examples' / 'own_environment' / 'reverse.py'}")
    assert load_config(None, (*own, process)).algorithm.advantage == "process"
    (problem,) = problems(*own, process, 'source.code.environment="python-code"')
    assert "with the environment python-code" in problem
    unused = ('source.code.environment="python-code"', "source.code.weight=0", "source.mine.weight=1")
    assert load_config(None, (*own, process, *unused)).algorithm.advantage == "process"


def test_decoupled_with_a_correction_says_what_to_use_instead():
    (problem,) = AlgorithmSettings(loss="decoupled", correction="tis").problems()
    assert problem.remedy == (
        'Use loss = "grpo" with correction = "tis", or loss = "decoupled" without a correction'
    )


def test_a_run_s_key_is_looked_for_in_its_own_section_first():
    with pytest.raises(ConfigError, match=r"Did you mean run\.dir\?"):
        load_config(None, ["model.path=tiny", "environment.name=arithmetic", "run.directory=x"])


def test_a_group_of_one_is_refused_wherever_it_is_set():
    (problem,) = problems(*BASE, 'queue.group_size_by_level={"1"=1}')
    assert problem.startswith("queue.group_size_by_level: must be at least 2 when algorithm.advantage is")


def test_a_band_that_no_group_can_be_in():
    narrow = ("acceptance.band_low=0.3", "acceptance.band_high=0.45", "queue.group_size=2")
    assert problems(*BASE, *narrow) == [
        "acceptance.band_low: no group of 2 can have a solved share from 0.3 to 0.45: every group would be "
        "dropped (got 0.3). Widen the band, or use larger groups"
    ]
    load_config(None, [*BASE, *narrow, "queue.group_size=8"])


def test_a_temperature_that_no_logit_can_be_divided_by():
    for key in ("generator.temperature", "eval.temperature"):
        (problem,) = problems(*BASE, f"{key}=1e-300")
        assert problem.startswith(f"{key}: must be 0, or at least 0.001 (got 1e-300). Use 0 ")


def test_numbers_of_rollouts_that_no_memory_holds():
    assert problems(*BASE, "eval.rollouts_per_task=1000000000", "queue.group_size=20000") == [
        "queue.group_size: must be at least 1 and at most 10000 (got 20000)",
        "eval.rollouts_per_task: must be at least 1 and at most 10000 (got 1000000000)",
    ]


JUDGE = ("judge.url=http://127.0.0.1:8000/v1", "judge.model=m")


def test_rewards_of_groups_need_their_parts():
    (text,) = problems(*BASE, "reward.group=pairwise")
    assert text.startswith('judge.url: needs a judge when reward.group is "pairwise"')
    (text,) = problems(
        *BASE, *JUDGE, "judge.per_turn=true", "algorithm.advantage=process", "reward.group=shorter"
    )
    assert text.startswith('reward.group: must be empty when algorithm.advantage is "process"')


def test_a_judge_may_give_the_rewards_of_turns():
    load_config(None, (*BASE, *JUDGE, "judge.per_turn=true", "algorithm.advantage=process"))
    (text,) = problems(*BASE, *JUDGE, "algorithm.advantage=process")
    assert "judge.per_turn = true" in text


@pytest.mark.parametrize(
    "given", [("format_penalty=1", "shaping.format=x"), ("truncated_penalty=1",), ("token_penalty=1",)]
)
def test_a_penalty_with_maxrl(given):
    (text,) = problems(*BASE, f"shaping.{given[0]}", *given[1:], "algorithm.advantage=maxrl")
    assert text.startswith(f"shaping.{given[0].partition('=')[0]}: must be 0 when algorithm.advantage is")


def test_a_group_function_of_ones_own_is_found_beside_the_config(tmp_path):
    (tmp_path / "run.toml").write_text(
        'model.path = "tiny"\nenvironment.name = "arithmetic"\nreward.group = "mine.py:ranked"\n'
    )
    assert load_config(tmp_path / "run.toml").reward.group == f"{tmp_path / 'mine.py'}:ranked"
