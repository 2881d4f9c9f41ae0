"""Which provider a config asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.local import LocalProvider
from headway.sandbox.pool import PooledProvider

if TYPE_CHECKING:
    from headway.sandbox.settings import SandboxSettings

_MADE_AHEAD = ("local",)  # providers whose sandboxes cost something before their first use


def make_provider(settings: SandboxSettings) -> BubblewrapProvider | LocalProvider:
    """Return the provider that `sandbox.provider` names; nothing starts before its first use."""
    return LocalProvider(settings) if settings.provider == "local" else BubblewrapProvider(settings)


def make_pool(settings: SandboxSettings, run_id: str, num_pools: int = 1) -> PooledProvider:
    """Return a pool over the provider that `sandbox.provider` names, one of `num_pools` of a run.

    Any of them may hand out all of `max_live`, for the scheduler grants over all; what is kept ready is
    shared out among them.
    """
    warm = settings.warm if settings.provider in _MADE_AHEAD else 0
    return PooledProvider(
        make_provider(settings),
        max_live=settings.max_live,
        max_starting=settings.max_starting,
        max_starts_per_s=settings.max_starts_per_s,
        warm=-(-warm // num_pools),
        run_id=run_id,
    )
