"""The built-in advantages, losses and corrections keep the contract; broken ones are found out."""

import pytest
import torch

from headway.algorithms.advantages import ADVANTAGES, Advantage, load_advantage
from headway.algorithms.corrections import CORRECTIONS
from headway.algorithms.losses import LOSSES, PolicyLoss, Terms, load_loss
from headway.algorithms.settings import AlgorithmSettings
from headway.core.errors import UserError
from tests.contract.algorithm_contract import check_advantage, check_correction, check_loss

LEVELS = ("token", "sequence", "geometric")


@pytest.mark.parametrize("name", ADVANTAGES.names)
def test_a_built_in_advantage(name):
    for settings in (
        AlgorithmSettings(advantage=name),
        AlgorithmSettings(advantage=name, std_eps=0.0, discount=0.9),
    ):
        check_advantage(load_advantage(settings), settings)


@pytest.mark.parametrize("name", LOSSES.names)
def test_a_built_in_loss(name):
    for settings in (AlgorithmSettings(loss=name), AlgorithmSettings(loss=name, sequence_mask_delta=0.1)):
        check_loss(load_loss(settings), settings)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CORRECTIONS.names)
def test_a_built_in_correction_alone_and_with_every_loss(name, level):
    settings = AlgorithmSettings(correction=name, correction_level=level)
    correction = CORRECTIONS.load(name)
    check_correction(correction, settings)
    for loss in LOSSES.names:
        check_loss(LOSSES.load(loss), settings, correction)


def averaging(logp, behaviour_logp, advantages, settings):
    return -advantages * logp / max(1, len(logp)), torch.zeros(len(logp), dtype=torch.bool)


def multiplied_mask(logp, behaviour_logp, advantages, settings):
    return -advantages * (logp - behaviour_logp).exp(), torch.zeros(len(logp), dtype=torch.bool)


def across_sequences(tokens, settings):
    centred = tokens.advantages - (tokens.advantages.mean() if len(tokens.logp) else 0)
    return Terms(-centred * tokens.logp, torch.zeros_like(tokens.advantages, dtype=torch.bool))


def one_short(logp, behaviour_logp, advantages, settings):
    return (-advantages * logp)[1:], torch.zeros(len(logp), dtype=torch.bool)


def first_kept(tokens, settings):
    return torch.arange(len(tokens.old_logp)) < 3


def kept_only(tokens, settings):
    return Terms(-tokens.advantages * tokens.logp * tokens.keep, ~tokens.keep)


@pytest.mark.parametrize(
    "loss",
    [
        averaging,
        multiplied_mask,
        PolicyLoss(across_sequences),
        one_short,
        PolicyLoss(kept_only, batch=first_kept),
    ],
    ids=["averages", "overflows", "mixes sequences", "a token too few", "depends on order"],
)
def test_a_broken_loss_is_found_out(loss):
    with pytest.raises((AssertionError, RuntimeError, UserError)):
        check_loss(loss)


@pytest.mark.parametrize(
    "advantage",
    [
        lambda rewards, settings: [reward / sum(rewards) if any(rewards) else 0.0 for reward in rewards][1:],
        lambda rewards, settings: [reward - rewards[0] for reward in rewards],
        Advantage(lambda r, s: list(r), batch=lambda tokens, s: tokens.advantages - tokens.advantages[:1]),
    ],
    ids=["a rollout too few", "depends on order", "batch half depends on order"],
)
def test_a_broken_advantage_is_found_out(advantage):
    with pytest.raises(AssertionError):
        check_advantage(advantage)


@pytest.mark.parametrize(
    "correction", [lambda r, s: r - 1, lambda r, s: r / r.sum(), lambda r, s: 1 / (r - r)]
)
def test_a_broken_correction_is_found_out(correction):
    with pytest.raises(AssertionError):
        check_correction(correction)
