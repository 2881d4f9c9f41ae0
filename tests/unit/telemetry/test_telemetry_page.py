"""The report as a page: what it shows of which run, that it holds together, that no text is obeyed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from headway.core import events as e
from headway.core import notes as n
from headway.core.records import Latency
from headway.telemetry.page.collect import PageData
from headway.telemetry.page.parts import SettingRow
from headway.telemetry.page.render import render
from headway.telemetry.page.thin import MAX_POINTS
from headway.telemetry.rollouts import FinishedRollout

graph_objects = pytest.importorskip("plotly.graph_objects")
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class Elements(HTMLParser):
    """Collects what a browser would make of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text, self.figures, self.sections = [], [], [], {}, []
        self._in = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        attrs = dict(attrs)
        self._in = attrs.get("id", tag) if tag == "script" else tag
        if tag == "section":
            self.sections.append(attrs["id"])

    def handle_data(self, data):
        if self._in == "figures":
            self.figures = json.loads(data)
            self._in = ""
        elif self._in not in ("script", "style"):
            self.text.append(data)

    @property
    def shown(self):
        return " ".join(" ".join(self.text).split())


def data_of(script, header):
    data = PageData(header)
    for record in script.records:
        data.feed(record)
    return data


def page_of(data, **more):
    settings = [SettingRow("queue.bound", "2", "2", differs=False, doc="Staleness bound.")]
    return Elements(render(data, name="by-hand", settings=more.pop("settings", settings), **more))


@pytest.fixture
def whole(kit):
    return data_of(kit.whole_run(), kit.header(model=kit.MODEL, usd_per_hour=3.6, peak_flops_per_s=10_000.0))


def curve(page, plot, name):
    (trace,) = [trace for trace in page.figures[f"plot-{plot}"]["data"] if trace.get("name") == name]
    return trace["x"], trace["y"]


def test_the_curves_are_the_series(whole):
    page = page_of(whole)
    assert curve(page, "reward-steps", "train, each step") == ([1, 2], [0.75, 0.5])
    assert curve(page, "reward-steps", "eval") == ([0, 2], [0.25, 0.75])
    assert curve(page, "reward-time", "train, each step") == ([25.0, 34.0], [0.75, 0.5])
    assert curve(page, "pass-train", "pass@1") == ([1, 2], [0.75, 0.5])
    assert curve(page, "pass-train", "groups without signal") == ([1, 2], [0.5, 0.0])
    assert curve(page, "rates", "used while computing (trainer)") == ([1, 2], [0.5, 0.333333])
    assert curve(page, "loss-loss", "loss") == ([1, 2], [0.5, 0.25])
    assert curve(page, "cost-usd", "spent") == ([25.0, 34.0], [0.025, 0.034])
    shares = {trace["name"]: trace["y"] for trace in page.figures["plot-trainer-time"]["data"]}
    assert shares == {
        "computes": [0.266667, 0.666667],
        "publishes": [0.0, 0.111111],
        "waits": [0.733333, 0.222222],
    }


def test_where_time_went_adds_up_to_the_rollouts_time(whole):
    page = page_of(whole)
    steps = page.figures["plot-latency-steps"]["data"]
    assert steps[0]["x"] == ["1", "2"]
    # step 1: 5 + 10 + 12 + 12 s, of four rollouts; step 2: 5 + 6, of two
    assert [round(sum(trace["y"][at] for trace in steps), 3) for at in (0, 1)] == [9.75, 5.5]
    total = page.figures["plot-latency-total"]["data"]
    assert sum(trace["x"][0] for trace in total) == pytest.approx(1.0)


def test_every_figure_is_one_that_plotly_knows_and_no_axes_are_empty(whole):
    page = page_of(whole)
    assert len(page.figures) > 15
    for name, figure in page.figures.items():
        plain = re.sub(r'"--[a-z0-9-]+"', '"#123456"', json.dumps({**figure, "height": None}))
        graph_objects.Figure({key: value for key, value in json.loads(plain).items() if key != "height"})
        on_axes = [trace for trace in figure["data"] if trace["type"] != "sankey"]
        assert all(len(trace["x"]) and len(trace["x"]) == len(trace["y"]) for trace in on_axes), name
    drawn = {value for key, value in page.attributes if key == "id" and value.startswith("plot-")}
    assert drawn == set(page.figures)


def test_sections_without_content_are_left_out(whole, kit):
    page = page_of(whole)
    assert page.sections == [
        "outcome", "matching", "learning", "flow", "staleness", "lengths", "time", "sandboxes", "discards",
        "trainer", "cost", "config", "versions",
    ]  # fmt: skip
    links = {value for key, value in page.attributes if key == "href"}
    assert links == {f"#{name}" for name in page.sections[1:]}
    bare = page_of(data_of(kit.whole_run(), kit.header()))
    assert "cost" not in bare.sections


def test_a_run_without_a_step_or_a_rollout(kit):
    script = kit.Script()
    script.event(0.0, e.RunStarted())
    page = page_of(data_of(script, kit.header()), state="killed")
    assert "No step has ended" in page.shown
    assert "killed" in page.shown
    assert page.figures == {}
    assert page.sections == ["outcome", "config", "versions"]
    assert page.tags.count("script") == 3  # plotly is not there for nothing


def test_one_evaluation_alone_is_no_curve(kit):
    script = kit.Script()
    script.event(0.0, e.RunStarted())
    script.event(1.0, e.EvalDue(), n.EvalStarted(0, 0, 1))
    script.event(2.0, e.DeadlinePassed(), n.EvalEnded(0, 0, 8, 0, 0.25, 0.2, 0.6, 4))
    page = page_of(data_of(script, kit.header()))
    assert page.figures == {}
    assert "pass@4 60%" in page.shown


def test_a_run_without_evaluations(kit):
    script = kit.whole_run()
    script.records = [
        record for record in script.records
        if not any(type(note).__name__.startswith("Eval") for note in getattr(record, "notes", ()))
    ]  # fmt: skip
    page = page_of(data_of(script, kit.header()))
    assert "plot-pass-eval" not in page.figures
    assert "Eval reward" not in page.shown
    assert "Train pass@1" in page.shown


def test_text_of_users_is_shown_and_not_obeyed(kit):
    script = kit.Script()
    script.event(0.0, e.RunStarted(), n.Warned(EVIL, EVIL))
    script.start(1.0, f"g0.{EVIL}")
    script.quick(2.0, f"g0.{EVIL}", 1.0)
    script.step(3.0, 1, 1.0, n.GuardAlarm(EVIL, 1.0, 2.0, "warn", 1), loss=0.5)
    script.event(4.0, e.SettingChanged("run.name", EVIL))
    script.event(5.0, e.DeadlinePassed(), n.Stopping("failed", EVIL))
    said = {"rollout": EVIL, "reasons": [EVIL], "branches": [{"pieces": [{"kind": EVIL, "text": EVIL}]}]}
    data = data_of(script, kit.header())
    rows = [SettingRow(EVIL, EVIL, EVIL, differs=True, doc=EVIL, before=EVIL)]
    text = render(data, name=EVIL, settings=rows, transcripts=[(EVIL, [said])])
    page = Elements(text)
    assert page.tags.count("script") == 4
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.shown.count(EVIL) >= 8
    (alarm, _) = sorted(
        page.figures["plot-reward-steps"]["layout"]["annotations"], key=lambda mark: mark["x"]
    )
    assert "<" not in alarm["hovertext"]
    assert "&lt;/script&gt;" in alarm["hovertext"]


def test_the_page_asks_for_nothing_from_anywhere(whole):
    page = page_of(whole)
    assert not {"link", "iframe", "img"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name in ("src", "action")]
    (policy,) = [value for name, value in page.attributes if name == "content" and "default-src" in value]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.partition("style-src")[0]


def test_marks_stand_in_plots_and_tables_and_lost_steps_in_no_curve(kit):
    script = kit.whole_run()
    script.event(41.0, e.SettingChanged("queue.bound", 4))
    script.event(
        42.0,
        e.DeadlinePassed(),
        n.GuardAlarm("entropy", 0.1, 0.2, "rollback", 2),
        n.RolledBackTo(1, 2, 1, "entropy"),
    )
    script.event(43.0, e.RunResumed(2, 1, 43.0))
    data = data_of(script, kit.header())
    page = page_of(data, state="running")
    assert curve(page, "reward-steps", "train, each step") == ([1], [0.75])
    assert sorted(data.buckets) == [1, 2]  # rollouts that step 2 may train again keep their place
    marks = page.figures["plot-reward-steps"]["layout"]["annotations"]
    assert [(mark["x"], mark["text"]) for mark in marks] == [(1.5, "◀"), (2.0, "▲"), (2.5, "◆")]
    assert marks[0]["hovertext"] == "back from step 2 to step 1: entropy<br>resumed after step 1"
    assert "queue.bound" in page.shown
    assert "guard alarm" in page.shown
    assert [limit.most for limit in data.limits] == []  # the header of this run says nothing of the queue


def test_thousands_of_steps_are_thinned_and_the_page_says_so(kit):
    data = PageData(kit.header())
    template = data_of(kit.whole_run(), kit.header()).metrics.steps.records[0]
    records = data.metrics.steps.records
    for step in range(1, 5001):
        spike = 100.0 if step == 2345 else 0.25
        records.append(replace(template, step=step, t=float(step), metrics={"grad_norm": spike, "loss": 0.5}))
    data.metrics.steps.steps_ended = 5000
    for step in range(1, 5001):
        data.metrics.steps.steps_ended = step - 1
        for _ in range(20):
            data.metrics.when_finished(
                FinishedRollout(
                    "g.1", "g", "train", float(step), 1.0, Latency(decode_s=1.5), 1.5, 7, 9, 1, 2, False, ()
                )
            )
    data.metrics.steps.steps_ended = 5000
    text = render(data, name="long", settings=[])
    page = Elements(text)
    assert len(text.encode()) < 8_000_000
    longest = max(len(trace["x"]) for figure in page.figures.values() for trace in figure["data"])
    assert longest <= MAX_POINTS
    pale, mean = page.figures["plot-loss-grad-norm"]["data"]
    assert (max(pale["y"]), pale["opacity"]) == (100.0, 0.3)
    assert len(mean["y"]) == 400
    assert "Long curves" in page.shown
    assert len(page.figures["plot-latency-steps"]["data"][0]["x"]) == 60


def test_the_slowest_are_kept_and_starts_that_took_no_time_are_none(kit):
    script = kit.Script()
    script.event(0.0, e.RunStarted())
    for number in range(40):
        name = f"g0.{number}"
        script.start(float(number), name)
        script.event(float(number), e.SandboxWanted(name, 0, f"sb{number}", "rollout"))
        ready = e.SandboxReady(name, 0, f"sb{number}", number / 100 if number != 7 else 0.0001)
        script.event(float(number), ready)
        script.event(float(number), ready)
        script.quick(number + 0.1 * number, name, 1.0)
    data = data_of(script, kit.header())
    starts = data.metrics.summary()["rl.sandbox.slowest_starts"]
    assert [start["sandbox"] for start in starts] == [f"sb{number}" for number in range(39, 27, -1)]
    page = page_of(data)
    assert "Slowest rollouts" in page.shown
    assert "Slowest sandbox starts" in page.shown
