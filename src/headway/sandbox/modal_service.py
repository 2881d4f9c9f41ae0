"""Modal's SDK as the provider uses it: connected once, its errors ours, its calls repeated by one owner.

Calls that may be repeated without harm are, with growing pauses, when the service is out of reach, out of
room or asks for patience, and by nobody above. What then still fails is a SandboxError, never an outcome.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from headway.core.clock import stopwatch
from headway.core.errors import SandboxError, SandboxRefusedError, SandboxUnavailableError

if TYPE_CHECKING:
    from headway.sandbox.settings import SandboxSettings

T = TypeVar("T")

_TRIES = 5
_ANSWER_S = 120.0  # for one answer of the service
_TRANSIENT = ("ResourceExhaustedError", "ServiceError", "InternalError", "ConnectionError", "TimeoutError")


class Service:
    """The SDK, its client, the app and the image, had at the first use; and who repeats its calls."""

    first_pause_s = 0.5  # before the first repetition; each further one waits twice as long

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._lock = asyncio.Lock()
        self.sdk: Any = None
        self.client: Any = None
        self.app: Any = None
        self.image: Any = None

    async def open(self) -> None:
        """Connect once. Raises SandboxUnavailableError for what only a person can put right."""
        async with self._lock:
            if self.app is not None:
                return
            try:
                self.sdk = importlib.import_module("modal")
            except ImportError as error:
                raise SandboxUnavailableError(
                    f"the provider modal needs Modal's SDK, which cannot be imported: {error}",
                    key="sandbox.provider",
                    remedy="Run `pip install 'headway[modal]'`, or choose another sandbox.provider",
                ) from error
            try:
                self.client = await self.sdk.Client.from_env.aio()
            except self.sdk.exception.AuthError as error:
                raise SandboxUnavailableError(
                    f"the provider modal needs credentials that the service takes: {_said(error)}",
                    key="sandbox.provider",
                    remedy="Run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET",
                ) from error
            except self.sdk.exception.Error as error:
                raise SandboxError(f"Modal's service cannot be reached: {_said(error)}") from error
            self.image = self.sdk.Image.from_registry(self._settings.container_image)
            name = self._settings.modal_app
            look = self.sdk.App.lookup.aio
            self.app = await self.again(
                "find its app", lambda: look(name, client=self.client, create_if_missing=True)
            )

    async def once(self, what: str, call: Callable[[], Awaitable[T]], timeout_s: float = _ANSWER_S) -> T:
        """Make one call of the SDK. Every failure is a SandboxError; credentials are the user's to mend."""
        errors = self.sdk.exception
        try:
            async with asyncio.timeout(timeout_s):
                return await call()
        except errors.AuthError as error:
            raise SandboxUnavailableError(
                f"Modal's service does not take the credentials: {_said(error)}",
                key="sandbox.provider",
                remedy="Run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET",
            ) from error
        except errors.Error as error:
            raise _Failed(f"Modal could not {what}: {_said(error)}", type(error).__name__) from error
        except TimeoutError as error:
            raise _Failed(f"Modal must {what} within {timeout_s:g} s", "TimeoutError") from error
        except OSError as error:
            raise _Failed(f"Modal could not {what}: {error}", "ConnectionError") from error

    async def again(
        self,
        what: str,
        call: Callable[[], Awaitable[T]],
        timeout_s: float = _ANSWER_S,
        within_s: float = float("inf"),
    ) -> T:
        """Make a call that may be repeated without harm, and repeat it while that may help.

        Args:
            what: it does, for errors.
            call: makes it.
            timeout_s: for one answer.
            within_s: for all tries and the pauses between them.
        """
        pause_s, began = self.first_pause_s, stopwatch()
        for left in reversed(range(_TRIES)):
            left_s = within_s - (stopwatch() - began)
            try:
                return await self.once(what, call, min(timeout_s, left_s))
            except _Failed as error:
                last = not left or stopwatch() - began + pause_s >= within_s
                if last and error.kind == "ResourceExhaustedError":
                    raise SandboxRefusedError(error.rule) from error
                if last or error.kind not in _TRANSIENT:
                    raise
            await asyncio.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("unreachable")


class _Failed(SandboxError):
    """A call that failed, and the SDK's name for how."""

    def __init__(self, rule: str, kind: str) -> None:
        super().__init__(rule)
        self.kind = kind


def _said(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__
