"""Which provider a config asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args, get_type_hints

from headway.core.errors import SandboxError
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.leases import LeaseBook
from headway.sandbox.local import LocalProvider
from headway.sandbox.pool import PooledProvider
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.sweep import Swept, sweep

if TYPE_CHECKING:
    from headway.core.protocols import SandboxProvider
    from headway.sandbox.leases import Owner

PROVIDERS: tuple[str, ...] = get_args(get_type_hints(SandboxSettings)["provider"])
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
        book=LeaseBook(run_id, settings.provider, settings.directory),
    )


async def sweep_left_overs(run: str | None = None) -> Swept:
    """End the sandboxes that dead processes left, those of one run or all."""
    return await sweep(provider_of, runs=None if run is None else (run,))


def provider_of(owner: Owner) -> SandboxProvider:
    """Return the provider that can end an owner's sandboxes."""
    return make_provider(settings_of(owner.provider, owner.directory))


def settings_of(provider: str, directory: str = "") -> SandboxSettings:
    """Return settings that name a provider; raise SandboxError where there is none of the name."""
    if provider not in PROVIDERS:
        raise SandboxError("there is no such provider of sandboxes", value=provider)
    return replace(SandboxSettings(), provider=provider, directory=directory)
