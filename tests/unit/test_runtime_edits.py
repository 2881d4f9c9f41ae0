"""A run's config.toml against the record of what the run began with."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest

from headway.config.load import load_config, load_sft_config
from headway.core.codec import to_plain
from headway.core.errors import RunDirectoryError
from headway.runtime.edits import check_unedited

TRAIN = load_config(
    None,
    [
        "model.path=tiny", "environment.name=arithmetic", "queue.bound=2",
        "source.sums.environment=arithmetic", "source.code.environment=python-code",
    ],
)  # fmt: skip
SFT = load_sft_config(None, ["model.path=tiny", "sft.data=train.jsonl"])
PATH = Path("config.toml")


@pytest.mark.parametrize("config", [TRAIN, SFT])
def test_settings_and_sections_that_are_newer_than_the_run_are_no_edits_at_their_defaults(config):
    record = to_plain(config)
    check_unedited(PATH, config, record)
    older = copy.deepcopy(record)
    del older["trainer"]["max_grad_norm"], older["checkpoint"]
    for source in older.get("source", {}).values():
        del source["weight"]  # a setting of a named section
    check_unedited(PATH, config, older)


def test_every_edit_is_named_with_both_values():
    record = copy.deepcopy(to_plain(TRAIN))
    record["queue"]["bound"] = 1
    record["source"]["sums"]["environment"] = "echo"
    with pytest.raises(RunDirectoryError) as caught:
        check_unedited(PATH, TRAIN, record)
    said = str(caught.value)
    assert "queue.bound is 2 (was 1)" in said
    assert "source.sums.environment is 'arithmetic' (was 'echo')" in said
    record = copy.deepcopy(to_plain(SFT))
    record["sft"]["epochs"] = 7
    with pytest.raises(RunDirectoryError, match=r"sft\.epochs is 3 \(was 7\)"):
        check_unedited(PATH, SFT, record)


def test_a_setting_newer_than_the_run_that_is_not_at_its_default_is_an_edit():
    record = copy.deepcopy(to_plain(TRAIN))
    default = record["queue"].pop("group_size")
    now = replace(TRAIN, queue=replace(TRAIN.queue, group_size=default - 2))
    with pytest.raises(RunDirectoryError, match=rf"queue\.group_size is {default - 2} \(was {default}\)"):
        check_unedited(PATH, now, record)


def test_a_source_that_was_taken_out_is_an_edit():
    record = copy.deepcopy(to_plain(TRAIN))
    record["source"]["more"] = record["source"]["sums"]
    with pytest.raises(RunDirectoryError, match=r"source\.more is None \(was \{"):
        check_unedited(PATH, TRAIN, record)
