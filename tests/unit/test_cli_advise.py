"""The command that tells a run what to change."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from headway.cli.advise import command
from headway.cli.report import command as report
from headway.matching.roles import SimSettings
from tests.simulation.journals import simulated_journal

SIM = SimSettings(num_turns=1, uses_sandbox=False, token_s=0.05, train_s=2.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("sync")
    simulated_journal(path, "stop.steps=10", "eval.num_tasks=0", "queue.bound=0", sim=SIM)
    return path


def invoke(which, *arguments: str) -> str:
    result = CliRunner().invoke(which, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def synchronous(output: str) -> dict:
    found = json.loads(output)
    assert found["bottleneck"] == "both in turn"
    return next(finding for finding in found["findings"] if finding["code"] == "synchronous")


def test_gains_are_of_a_simulation_of_the_run_where_it_can_be_simulated(run):
    finding = synchronous(invoke(command, str(run), "--json"))
    assert finding["change"]["settings"] == {"queue.bound": "1"}
    assert finding["gain"]["how"] == "re-simulated"
    assert finding["gain"]["low"] <= finding["gain"]["mean"] <= finding["gain"]["high"]
    assert 0.3 < finding["gain"]["mean"] < 1.5
    assert "5 seeds" in finding["gain"]["basis"]


def test_quick_gains_are_closed_forms(run):
    finding = synchronous(invoke(command, str(run), "--json", "--quick"))
    assert finding["gain"]["how"] == "closed form"


def test_figures_name_the_fields_range_and_where_it_is_from(run):
    figures = json.loads(invoke(command, str(run), "--json", "--quick"))["figures"]
    wait = next(figure for figure in figures if figure["metric"] == "rl.trainer.wait_fraction")
    assert wait["typical"] == [0.30, 0.74]
    assert "field report" in wait["typical_source"]


def test_the_text_says_what_to_do(run):
    text = invoke(command, str(run), "--quick")
    assert text.startswith(f"{run.name}: Generator and trainer take turns")
    assert "queue.bound=1" in text


def test_the_report_has_a_section_of_findings(run):
    text = invoke(report, str(run))
    section = text.split("\nFindings\n")[1].split("\n\n")[0]
    assert "1. Synchronous: generator and trainer take turns" in section
    assert "queue.bound=1" in section


def test_the_reports_page_has_the_findings(run, tmp_path):
    pytest.importorskip("plotly")
    file = tmp_path / "report.html"
    invoke(report, str(run), "--html", str(file))
    page = file.read_text(encoding="utf-8")
    assert "1. Synchronous: generator and trainer take turns" in page
    assert 'id="plot-tokens-flow"' in page
