"""The section on matching: the flow of tokens, the two rates, ages, and findings as words."""

from __future__ import annotations

import pytest
from tests.unit.telemetry.test_telemetry_page import EVIL, Elements, data_of

from headway.telemetry.page.collect import PageData
from headway.telemetry.page.render import render
from headway.telemetry.page.tokens_flow import tokens
from headway.telemetry.told import Findings, Told

pytest.importorskip("plotly")


def summary(**by_fate: int) -> dict:
    fates = (
        "filtered", "pruned", "cancelled", "stale", "voided", "failed_infrastructure", "failed_environment",
        "failed_reward", "stopped", "unused",
    )  # fmt: skip
    kept = {name: by_fate.get(name, 0) for name in ("trained", "carried")}
    discards = {f"rl.discard.{fate}.tokens": by_fate.get(fate, 0) for fate in fates}
    return {"conservation.tokens_by_fate": kept, **discards}


def nodes(plot) -> dict[str, tuple[str, int]]:
    """Return name -> (share, what flows in)."""
    (trace,) = plot.figure["data"]
    flows = dict(zip(trace["link"]["target"], trace["link"]["value"], strict=True))
    found = {}
    for place, label in enumerate(trace["node"]["label"]):
        name, figures = label.split("<br>")
        found[name] = (figures.rpartition(", ")[2], flows.get(place, 0))
    return found


def test_every_token_is_trained_or_leaves_somewhere():
    plot = tokens(summary(trained=500, cancelled=200, filtered=150, stale=100, unused=50))
    assert plot is not None
    assert nodes(plot) == {
        "sampled": ("100%", 0),
        "finished": ("80%", 800),
        "cancelled by oversampling": ("20%", 200),
        "with signal": ("65%", 650),
        "no signal": ("15%", 150),
        "trained": ("50%", 500),
        "too old": ("10%", 100),
        "left over at the end": ("5%", 50),
    }
    (trace,) = plot.figure["data"]
    for place in range(len(trace["node"]["label"])):
        into = sum(
            v for t, v in zip(trace["link"]["target"], trace["link"]["value"], strict=True) if t == place
        )
        out = sum(
            v for s, v in zip(trace["link"]["source"], trace["link"]["value"], strict=True) if s == place
        )
        assert out in (0, into or 1000)


def test_a_stage_that_loses_nothing_is_left_out_and_small_ways_out_are_one():
    plot = tokens(summary(trained=10_000, failed_infrastructure=5, failed_environment=3))
    assert plot is not None
    assert list(nodes(plot)) == ["sampled", "finished", "2 other ways", "trained"]
    assert nodes(plot)["2 other ways"] == ("below 1%", 8)


def test_all_tokens_may_be_lost():
    plot = tokens(summary(filtered=300))
    assert plot is not None
    assert list(nodes(plot)) == ["sampled", "no signal"]


def test_a_run_without_tokens_has_no_flow():
    assert tokens(summary()) is None


def test_the_rates_hold_from_the_step_before(kit):
    page = Elements(render(data_of(kit.whole_run(), kit.header()), name="run", settings=[]))
    trained, pace, made = page.figures["plot-matched"]["data"]
    assert len(trained["x"]) == len(set(trained["x"]))
    assert trained["line"]["shape"] == "vh"
    assert all(t <= p for t, p in zip(trained["y"], pace["y"], strict=True))
    assert made["x"] == trained["x"]


def test_findings_are_shown_as_words_and_ranges_beside_the_tiles(kit):
    evidence = (f"waiting: 42% {EVIL}",)
    change = "queue.bound=1: ahead"
    told = Told(f"Stragglers {EVIL}", 0.42, "steps 1-2", evidence, change, "up to +20%", "Older.")
    findings = Findings(
        "The generator is the bottleneck.", (told,), (("rl.trainer.wait_fraction", "30% to 74%"),)
    )
    data: PageData = data_of(kit.whole_run(), kit.header())
    text = render(data, name="run", settings=[], findings=findings)
    assert EVIL not in text
    assert "The generator is the bottleneck." in text
    assert "42%" in text
    assert "queue.bound=1: ahead" in text
    assert "the field: 30% to 74%" in text


def test_without_anybody_who_looked_there_are_no_findings(kit):
    text = render(data_of(kit.whole_run(), kit.header()), name="run", settings=[])
    assert 'class="verdict"' not in text
