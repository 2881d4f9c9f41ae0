"""Ends what one process left, right after its death: `python -m headway.sandbox.guard LEASES`.

The process starts it for sandboxes that outlive it, as a shell that waits for the end of a pipe whose other
end the process alone has, and becomes this program only if there is something to end: the file of leases
is still there. It has a session of its own, so that no signal to the process's group ends both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

_FOR_S, _FIRST_PAUSE_S, _PAUSE_S = 120.0, 0.05, 2.0
_WAIT = 'read -r _; test -e "$1" && shift && exec "$@"'


def start(leases: Path) -> int:
    """Start a guard over a file of leases; return the descriptor at whose end it acts, -1 without a shell."""
    read, write = os.pipe()
    words = [str(leases), sys.executable, "-m", "headway.sandbox.guard", str(leases)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        # Nobody waits for it: it ends after this process, or was killed and then guards nothing.
        subprocess.Popen(
            ["/bin/sh", "-c", _WAIT, "headway-guard", *words],
            stdin=read,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd="/",
            start_new_session=True,
        ).returncode = 0
    except OSError:
        os.close(write)
        return -1
    finally:
        os.close(read)
    return write


async def end_left_overs(leases: Path) -> None:
    """Sweep one file until it is gone, or for some minutes: what was begun elsewhere may come to be later.

    Somebody else may have it, to look at it or to sweep it too, and die over it: it is gone when it is gone.
    """
    from headway.sandbox.pools import provider_of
    from headway.sandbox.sweep import sweep

    slept_s, pause_s = 0.0, _FIRST_PAUSE_S
    while slept_s < _FOR_S:
        await sweep(provider_of, only=leases, folder=leases.parent)
        if not await asyncio.to_thread(leases.exists):
            return
        await asyncio.sleep(pause_s)
        slept_s, pause_s = slept_s + pause_s, min(_PAUSE_S, 2 * pause_s)


if __name__ == "__main__":
    with contextlib.suppress(FileNotFoundError):  # somebody else was faster
        asyncio.run(end_left_overs(Path(sys.argv[1])))
