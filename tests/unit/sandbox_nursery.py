"""Forks controllers that make sandboxes without end, and adopts whatever outlives them.

Run as `python sandbox_nursery.py FOLDER`; each line on stdin, PROVIDER[:preload|:guarded[:IMAGE]], is
answered by the pid of a controller that is about to begin. Forking spares each of them the imports.
"""

import asyncio
import ctypes
import dataclasses
import itertools
import os
import sys
from pathlib import Path

from headway.sandbox.leases import LeaseBook
from headway.sandbox.pool import PooledProvider
from headway.sandbox.providers import make_provider
from headway.sandbox.settings import SandboxSettings

PR_SET_CHILD_SUBREAPER = 36


async def controller(provider, how, image, folder):
    run = f"run-{os.getpid()}"
    directory = str(folder / "sandboxes")
    settings = SandboxSettings(provider=provider, directory=directory, preload_python=how == "preload")
    settings = dataclasses.replace(settings, container_image=image) if image else settings
    book = LeaseBook(run, settings, folder / "leases", guarded=how == "guarded")
    pool = PooledProvider(make_provider(settings), max_live=12, warm=4, run_id=run, book=book)

    async def user(number):
        for again in itertools.count():
            sandbox = await pool.create(f"s{number}-{again}", {"run": run})
            await sandbox.write("file", b"x")
            await sandbox.exec(["sh", "-c", "setsid sleep 600 & sleep 0.01"])
            await sandbox.terminate()

    os.write(1, b"%d\n" % os.getpid())
    async with asyncio.TaskGroup() as group:
        group.create_task(pool.run())
        for number in range(4):
            group.create_task(user(number))


def main():
    folder = Path(sys.argv[1])
    (folder / "leases").mkdir(exist_ok=True)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    while line := sys.stdin.readline():
        _reap()
        if os.fork() == 0:
            try:
                provider, how, image, *_ = [*line.strip().split(":", 2), "", ""]
                asyncio.run(controller(provider, how, image, folder))
            finally:
                os._exit(1)
    _reap()


def _reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    main()
