"""Cost: the field report's identities within 1 %, and the two commands."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from headway.cli.cost import command as cost_command
from headway.cli.plan import command as plan_command
from headway.matching.closed_forms import two_rates
from headway.matching.cost import CostSettings, RunCost, ownership, price_of
from headway.matching.model_facts import known_models
from headway.matching.spec_load import load_spec
from tests.unit.test_matching_spec import SPEC

CASES = Path(__file__).parents[2] / "examples" / "cases"


def test_an_h200_costs_what_the_report_says():
    owned = ownership(CostSettings())
    assert owned.total == pytest.approx(1.59, rel=0.01)
    assert owned.capital_fraction == pytest.approx(0.725, rel=0.01)
    assert 8 * CostSettings().capital_usd == 361_000


def test_hours_that_nobody_uses_are_paid_too():
    half = ownership(CostSettings(used_fraction=0.5))
    assert half.total == pytest.approx(2 * ownership(CostSettings()).total)
    assert half.unused == pytest.approx(half.total / 2)


def test_the_reports_own_arithmetic():
    assert two_rates(1.95, 2.75).wait == pytest.approx(0.291, rel=0.01)
    assert (pytest.approx(186, rel=0.01), pytest.approx(263, rel=0.01)) == (512 / 2.75, 512 / 1.95)
    per_s = 256 * 1.59 / 3600 / 6.90 * 1e6
    assert per_s == pytest.approx(16_386, rel=0.01)
    assert per_s / 1.95 == pytest.approx(8_403, rel=0.01)
    assert pytest.approx(2_612, rel=0.01) == 96 * 1.59 / 3600 / 16.23 * 1e6
    assert pytest.approx(3.85, rel=0.01) == 1 / (1 - 0.74)
    assert (pytest.approx(2.01, rel=0.01), pytest.approx(4.86, rel=0.01)) == (6.90 / 3.43, 16.23 / 3.34)


def test_the_reports_mfu_is_attention_at_the_full_window():
    """8,607 tokens a sample follow from 10.5 % of 6 N + 6 L a S with S the whole 32K."""
    model = known_models()["Qwen3-235B-A22B"]
    per_token = 6 * model.linear_params + 6 * model.score_width * 32768
    tokens = 0.105 * 64 * 989e12 * 186 / 512 / per_token
    assert tokens == pytest.approx(8_607, rel=0.01)
    real = 6 * model.linear_params + 6 * model.score_width * tokens
    assert load_spec(CASES / "case1.toml").hardware.trainer.mfu == pytest.approx(
        0.105 * real / per_token, rel=0.03
    )


def test_a_services_price_has_three_parts():
    price = price_of("Qwen3-235B-A22B")
    assert price is not None
    assert price.per_mtok(1.0) == pytest.approx(2.04 + 1.70)
    assert price.per_mtok(0.0) == pytest.approx(2.04 + 0.68)
    assert price.per_mtok(0.7) == pytest.approx(3.43, rel=0.01)  # the report's comparison with case 1
    assert price_of("Nothing") is None


def test_a_runs_price_has_two_denominators():
    cost = RunCost(36.0, 2000.0, 1000.0)
    assert (cost.usd_per_mtok, cost.usd_per_row_mtok) == (pytest.approx(10.0), pytest.approx(5.0))


def test_the_commands_answer_first_and_give_all_as_json(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(SPEC)
    said = CliRunner().invoke(plan_command, [str(file), "queue.bound=4"])
    assert said.exit_code == 0, said.output
    first, second = said.output.splitlines()[:2]
    assert first.startswith("small: ")
    assert "the trainer waits" in first
    assert second.startswith("bottleneck: ")
    told = json.loads(CliRunner().invoke(plan_command, [str(file), "queue.bound=4", "--json"]).output)
    assert told["plan.bottleneck"]["name"] in second
    assert told["rl.trainer.mfu_convention"].startswith("causal")
    assert told["plan.sensitivity"]
    best = CliRunner().invoke(
        plan_command, [str(file), "queue.bound=4", "--optimise", "--gpus", "16", "--bound", "2"]
    )
    assert best.output.startswith("best of 16 accelerators: ")
    owned = json.loads(CliRunner().invoke(cost_command, ["cost.used_fraction=0.5", "--json"]).output)
    assert owned["cost.usd_per_gpu_hour"] == pytest.approx(2 * 1.59, rel=0.01)
    run = CliRunner().invoke(cost_command, [str(file), "queue.bound=4"])
    assert "per million tokens of trained rows" in run.output


@pytest.mark.parametrize("case", [1, 2, 3, 4])
def test_every_figure_of_a_case_says_where_it_is_from(case):
    lines = (CASES / f"case{case}.toml").read_text().splitlines()
    figures = [line for line in lines if "=" in line and not line.startswith("#")]
    marks = ("# input", "# assumed", "# fitted", "# of case 1")
    unmarked = [line for line in figures if not any(mark in line for mark in marks)]
    assert unmarked == []
    fitted = [line for line in figures if "# fitted" in line and "engine constant" not in line]
    assert len(fitted) <= 2
    load_spec(CASES / f"case{case}.toml")
