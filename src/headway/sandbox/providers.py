"""Which provider a config asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.local import LocalProvider

if TYPE_CHECKING:
    from headway.sandbox.settings import SandboxSettings


def make_provider(settings: SandboxSettings) -> BubblewrapProvider | LocalProvider:
    """Return the provider that `sandbox.provider` names; nothing starts before its first use."""
    return LocalProvider(settings) if settings.provider == "local" else BubblewrapProvider(settings)
