"""The pool that a config asks for, and what ends the sandboxes of processes that died."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, get_args, get_type_hints

from headway.core.codec import from_plain
from headway.core.errors import SandboxError
from headway.sandbox.leases import LeaseBook
from headway.sandbox.pool import PooledProvider
from headway.sandbox.providers import make_provider
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.sweep import Swept, sweep

if TYPE_CHECKING:
    from headway.core.protocols import SandboxProvider
    from headway.sandbox.leases import Owner

PROVIDERS: tuple[str, ...] = get_args(get_type_hints(SandboxSettings)["provider"])
_MADE_AHEAD = ("local", "podman", "docker")  # what is ready costs memory there, and no money
WITH_THEIR_OWNER = ("local",)  # providers whose sandboxes end when their owner does, however it ends


def make_pool(settings: SandboxSettings, run_id: str, warm: int | None = None) -> PooledProvider:
    """Return a pool over the provider that `sandbox.provider` names.

    Args:
        settings: of the sandboxes; a relative folder is one of the current directory.
        run_id: label of what it makes ahead, and of its leases.
        warm: most that it keeps ready; `kept_ready(settings)` where nothing is given.
    """
    if settings.directory:  # whoever ends what is left runs elsewhere
        settings = dataclasses.replace(
            settings, directory=str(Path(settings.directory).expanduser().absolute())
        )
    return PooledProvider(
        make_provider(settings),
        max_live=settings.max_live,
        max_starting=settings.max_starting,
        max_starts_per_s=settings.max_starts_per_s,
        warm=kept_ready(settings) if warm is None else warm,
        run_id=run_id,
        book=LeaseBook(run_id, settings, guarded=settings.provider not in WITH_THEIR_OWNER),
    )


def kept_ready(settings: SandboxSettings) -> int:
    """Return how many sandboxes are kept ready at most, by all workers of a run."""
    return settings.warm if settings.provider in _MADE_AHEAD else 0


def share(number: int, part: int, num_parts: int) -> int:
    """Return part `part` of a number that is divided as evenly as may be; the first parts have the rest."""
    return number // num_parts + (part < number % num_parts)


async def sweep_left_overs(run: str | None = None) -> Swept:
    """End the sandboxes that dead processes left, those of one run or all."""
    return await sweep(provider_of, runs=None if run is None else (run,))


def provider_of(owner: Owner) -> SandboxProvider:
    """Return the provider that can end an owner's sandboxes.

    Raises SandboxError when its settings are of another version of Headway.
    """
    known = {field.name for field in dataclasses.fields(SandboxSettings)}
    try:
        plain = {name: value for name, value in owner.settings.items() if name in known}
        return make_provider(from_plain(SandboxSettings, plain))
    except (TypeError, ValueError, KeyError) as error:
        raise SandboxError(f"its settings cannot be read: {error}", value=owner.settings) from error


def settings_of(provider: str) -> SandboxSettings:
    """Return settings that name a provider; raise SandboxError where there is none of the name."""
    if provider not in PROVIDERS:
        raise SandboxError("there is no such provider of sandboxes", value=provider)
    return dataclasses.replace(SandboxSettings(), provider=provider)
