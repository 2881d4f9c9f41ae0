"""Which provider a config asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.sandbox.bubblewrap import BubblewrapProvider

if TYPE_CHECKING:
    from headway.core.protocols import SandboxProvider
    from headway.sandbox.settings import SandboxSettings


def make_provider(settings: SandboxSettings) -> SandboxProvider:
    """Return the provider that `sandbox.provider` names; nothing starts before its first use.

    Only that provider's module is imported. Raises SandboxUnavailableError for one that must be allowed.
    """
    match settings.provider:
        case "bubblewrap":
            return BubblewrapProvider(settings)
        case "local":
            from headway.sandbox.local import LocalProvider

            return LocalProvider(settings)
        case "unsafe-local":
            from headway.sandbox.unsafe import UnsafeProvider

            return UnsafeProvider(settings)
        case "podman" | "docker":
            from headway.sandbox.containers import ContainerProvider

            return ContainerProvider(settings, settings.provider)
        case "modal":
            from headway.sandbox.modal import ModalProvider

            return ModalProvider(settings)
