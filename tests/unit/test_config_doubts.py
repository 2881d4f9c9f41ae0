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
