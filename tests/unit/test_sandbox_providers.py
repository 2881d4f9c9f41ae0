"""Which provider a config gets, and that nothing of the others is loaded for it."""

import asyncio
import subprocess
import sys

import pytest

from headway.core.errors import SandboxError
from headway.sandbox.providers import make_provider
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.whole import whole


@pytest.mark.parametrize(
    ("name", "made", "loaded"),
    [
        ("bubblewrap", "BubblewrapProvider", {"bubblewrap"}),
        ("local", "LocalProvider", {"local"}),
        ("podman", "ContainerProvider", {"containers"}),
        ("docker", "ContainerProvider", {"containers"}),
        ("modal", "ModalProvider", {"modal"}),
        ("unsafe-local", "UnsafeProvider", {"unsafe", "bubblewrap"}),
    ],
)
def test_a_provider_is_made_without_the_modules_of_others(name, made, loaded):
    code = f"""
import sys
from headway.sandbox.providers import make_provider
from headway.sandbox.settings import SandboxSettings
print(type(make_provider(SandboxSettings(provider={name!r}, allow_unsafe=True))).__name__)
print(*(name for name in ("bubblewrap", "local", "containers", "modal", "unsafe")
        if f"headway.sandbox.{{name}}" in sys.modules))
print(*(name for name in ("modal", "grpclib", "aiohttp", "torch") if name in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    first, second, third = done.stdout.split("\n")[:3]
    assert first == made
    assert set(second.split()) == loaded
    assert third == ""


def test_the_default_needs_no_choice():
    assert type(make_provider(SandboxSettings())).__name__ == "BubblewrapProvider"


async def test_work_that_was_begun_ends_before_its_caller_is_cancelled():
    steps = []

    async def work():
        await asyncio.sleep(0.05)
        steps.append("done")
        return 1

    task = asyncio.create_task(whole(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["done"]
    assert await whole(work()) == 1

    async def fail():
        raise SandboxError("no")

    with pytest.raises(SandboxError):
        await whole(fail())
