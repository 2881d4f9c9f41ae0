"""The report's page in a real browser, and what the report writes of real runs."""

import json
import os
import re
import shutil
import subprocess

import pytest

from headway.cli.main import main
from headway.telemetry.journal import read_journal
from headway.telemetry.metrics import RunMetrics
from tests.simulation.journals import simulated_journal

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
WIDE, PHONE = (1300, 1400), (500, 1400)

pytest.importorskip("plotly")
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium is found; `make browser` installs one"
)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """The journal of a simulated run of some steps, with what users write in its config and warnings."""
    from headway.core.events import SettingChanged
    from headway.core.notes import Warned

    path = tmp_path_factory.mktemp("run")
    evil = "</script><script>document.title='obeyed'</script>"
    told = (SettingChanged("run.name", evil), (), (Warned("evil", evil),))
    simulated_journal(path, "stop.steps=12", more=[told], usd_per_hour=2.0)
    return path


@pytest.fixture(scope="module")
def page(run_dir, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    assert main(["report", str(run_dir), "--html", str(file)]) == 0
    return file


def open_in_browser(page, folder, size=WIDE, dark=False):
    """Return the page's elements after its scripts ran, the console, and a picture of it."""
    image_module = pytest.importorskip("PIL.Image")
    picture = folder / "page.png"
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--disable-gpu",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={size[0]},{size[1]}",
            "--hide-scrollbars",
            "--virtual-time-budget=10000",
            *(["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []),
            "--enable-logging=stderr",
            "--dump-dom",
            f"--screenshot={picture}",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, console, image_module.open(picture).convert("L")


@needs_browser
def test_a_browser_draws_every_plot_without_a_complaint(page, tmp_path):
    dom, console, picture = open_in_browser(page, tmp_path)
    assert console == []
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', dom, re.DOTALL)[1])
    assert len(figures) > 10
    assert f'data-drawn="{len(figures)}"' in dom
    assert dom.count('class="main-svg" xmlns') == dom.count('<svg class="main-svg"') >= 2 * len(figures)
    assert "<title>obeyed" not in dom
    assert 'data-theme="light"' in dom
    shades = picture.getcolors()
    assert len(shades) > 50  # not blank
    assert brightness(picture) > 200


@needs_browser
def test_in_the_dark_and_on_a_phone(page, tmp_path):
    dom, console, picture = open_in_browser(page, tmp_path, size=PHONE, dark=True)
    assert console == []
    assert 'data-theme="dark"' in dom
    assert len(picture.getcolors()) > 50
    assert brightness(picture) < 60


def brightness(picture):
    """Return the mean shade, 0 black to 255 white."""
    return sum(count * shade for count, shade in picture.getcolors()) / (picture.width * picture.height)


def test_a_real_run_is_reported_while_it_goes_on_and_after_it_was_killed(bench, capsys):
    file, run = bench.folder / "report.html", str(bench.run_dir)
    going = bench.start("train", bench.config, "stop.steps=500").until_step(2)
    assert main(["report", run, "--html", str(file)]) == 0
    assert '<div class="tile busy">' in file.read_text()
    bench.kill_one(going, "driver")
    assert main(["report", run, "--html", str(file)]) == 0
    text = file.read_text()
    assert '<p class="value">killed</p>' in text
    assert 'id="transcripts"' in text
    assert 'class="trained"' in text
    assert str(file) in capsys.readouterr().out


@pytest.mark.slow
def test_scalars_are_written_while_a_run_goes_on_and_after_it_was_resumed(bench):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert bench.train("telemetry.tensorboard=true").code == 0
    resumed = bench.headway("resume", bench.run_dir, "stop.steps=5")
    assert resumed.code == 0, resumed.text
    bench.check()
    found = accumulators.EventAccumulator(str(bench.run_dir / "tensorboard"))
    found.Reload()
    assert [event.step for event in found.Scalars("loss/grad_norm")] == [1, 2, 3, 4, 5]
    told = {event.step: event.value for event in found.Scalars("train/reward")}
    series = RunMetrics.of(read_journal(bench.run_dir)).series()
    assert told == pytest.approx({row["step"]: row["reward"] for row in series if row["reward"] is not None})


def test_a_missing_tensorboard_is_told_before_the_run_begins(bench):
    (bench.folder / "tensorboard.py").write_text("raise ImportError('not here')\n")
    text = bench.train("telemetry.tensorboard=true").refused()
    assert "telemetry.tensorboard: " in text
    assert "pip install 'headway[tensorboard]'" in text
    assert not bench.run_dir.exists()
