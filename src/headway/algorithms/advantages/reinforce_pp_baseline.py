"""REINFORCE++-baseline: rewards centred within their group, then whitened over the batch (Hu et al. 2025)."""

from __future__ import annotations

from headway.algorithms.advantages import Advantage
from headway.algorithms.advantages.dr_grpo import dr_grpo
from headway.algorithms.advantages.reinforce_pp import whitened_returns

reinforce_pp_baseline = Advantage(dr_grpo, batch=whitened_returns)
