"""Settings that may be used together and hardly ever should."""

import pytest

from headway.config.doubts import doubtful_settings
from headway.config.load import load_config

BASE = ("model.path=tiny", "environment.name=arithmetic")


def doubts(*overrides):
    return {clash.keys[0]: clash for clash in doubtful_settings(load_config(None, (*BASE, *overrides)))}


def test_the_defaults_raise_no_doubt():
    assert doubts() == {}


def test_all_weights_with_the_rate_of_lora():
    clash = doubts("trainer.full=true")["trainer.learning_rate"]
    assert "with 5e-04, the default" in clash.rule
    assert "1e-5" in clash.remedy


@pytest.mark.parametrize("overrides", [["trainer.full=true", "trainer.learning_rate=1e-5"], []])
def test_all_weights_with_another_rate_and_lora_with_its_own(overrides):
    assert "trainer.learning_rate" not in doubts(*overrides)


@pytest.mark.parametrize(
    ("provider", "image", "longest_s"),
    [("bubblewrap", "", 40), ("local", "", 120), ("podman", "", 80), ("modal", "files", 140)],
)
def test_a_start_may_take_all_that_it_waits_for_one_after_the_other(provider, image, longest_s):
    given = (f"sandbox.provider={provider}", f"sandbox.image={image}", "sandbox.start_timeout_s=40")
    assert "deadlines.sandbox_s" not in doubts(*given, f"deadlines.sandbox_s={longest_s}")
    clash = doubts(*given, f"deadlines.sandbox_s={longest_s - 1}")["deadlines.sandbox_s"]
    assert f"may take {longest_s} s to start" in clash.rule
    assert doubts(f"sandbox.provider={provider}") == {}


def test_the_folder_of_sandboxes_is_relative_to_the_file_that_names_it(tmp_path, monkeypatch):
    (tmp_path / "below").mkdir()
    file = tmp_path / "below" / "run.toml"
    file.write_text('model.path = "tiny"\nenvironment.name = "arithmetic"\nsandbox.directory = "boxes"\n')
    monkeypatch.chdir(tmp_path)
    assert load_config(file).sandbox.directory == str(tmp_path / "below" / "boxes")
    assert load_config(file, ["sandbox.directory=mine"]).sandbox.directory == str(tmp_path / "mine")
    assert load_config(None, (*BASE, "sandbox.directory=mine")).sandbox.directory == str(tmp_path / "mine")


def test_a_judge_may_not_outlast_the_score():
    judge = ("judge.url=http://127.0.0.1:8000/v1", "judge.model=m")
    assert doubts(*judge) == {}
    clash = doubts(*judge, "judge.request_timeout_s=30")["reward.timeout_s"]
    assert "a score is given up after 30 s, and one request may take 30 s" in clash.rule
    assert clash.remedy == "Use 60, or a smaller judge.request_timeout_s"


def test_the_folder_of_a_judges_cache_is_relative_to_the_file_that_names_it(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('model.path = "tiny"\nenvironment.name = "arithmetic"\njudge.cache_dir = "kept"\n')
    assert load_config(file).judge.cache_dir == str(tmp_path / "kept")


@pytest.mark.parametrize(
    ("overrides", "is_doubted"),
    [
        ((), False),
        (('control.levers=["depth","running","batch_wait"]',), True),
        (('control.levers=["groups_extra"]',), False),
        (('control.levers=["groups_extra"]', "oversampling.when_met=finish"), True),
        (('control.levers=["rollouts_extra"]', "oversampling.when_met=finish"), False),
    ],
)
def test_at_bound_0_control_has_oversampling_or_next_to_nothing(overrides, is_doubted):
    """Extra groups that are kept for a later batch need room within the bound."""
    found = doubts("queue.bound=0", "control.mode=on", *overrides)
    assert ("control.levers" in found) == is_doubted
