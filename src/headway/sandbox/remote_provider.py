"""What the providers of machines have in common: the roster, snapshots and images of the work folder."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headway.core.errors import SandboxUnavailableError
from headway.core.protocols import Guarantee
from headway.sandbox.images import Image, image_of
from headway.sandbox.remote import RemoteSandbox
from headway.sandbox.roster import RosterProvider

if TYPE_CHECKING:
    from headway.sandbox.machine import Machine
    from headway.sandbox.settings import SandboxSettings


USAGE_OF_MACHINES = Guarantee(
    "usage",
    "best-effort",
    "CPU and memory are told where a machine shows its cgroup (0 elsewhere), those of Headway's "
    "own programs in it included; files and disk always",
)


class RemoteProvider(RosterProvider[RemoteSandbox]):
    """Makes sandboxes over machines; a subclass knows how a machine is made."""

    spawns = False
    pauses = False

    def __init__(self, settings: SandboxSettings) -> None:
        super().__init__(settings)
        self._image: Image | None = None

    def machine(self, sandbox_id: str, labels: Mapping[str, str]) -> Machine:
        """Return a machine that is not made yet."""
        raise NotImplementedError

    def new(self, sandbox_id: str, labels: Mapping[str, str]) -> RemoteSandbox:
        """Return a sandbox that is not in the roster."""
        return RemoteSandbox(
            sandbox_id,
            labels,
            self.machine(sandbox_id, labels),
            self._settings,
            image=self.image,
            on_end=lambda: self.forget(sandbox_id),
        )

    async def image(self) -> Image | None:
        """Return what every work folder begins with, built at the first use.

        Raises SandboxUnavailableError for an image that is a Python environment.
        """
        if self._settings.image and self._image is None:
            image = await asyncio.to_thread(image_of, self._settings.image, None)
            if image is not None and image.kind == "python":
                raise SandboxUnavailableError(
                    "a Python environment of the host cannot be had in a container or a service's machine",
                    value=self._settings.image,
                    key="sandbox.image",
                    remedy="Install the packages into an image of your own, and name it by "
                    "sandbox.container_image",
                )
            self._image = image
        return self._image
