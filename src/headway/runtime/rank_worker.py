"""The entry of the trainer's ranks above 0: `python -m headway.runtime.rank_worker FD PARENT`.

It consumes operations from the socket FD, the first message being its job, and does each with the other
ranks; back go the words that `rank_links` waits for. It waits for the next operation as long as rank 0 lives,
and leaves when rank 0 closes the socket. What it raises goes to the trainer's log, and ends it: rank 0 finds
that out in the operation that it shares, and raises bad input, which it is sent, as its own.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.errors import UserError
from headway.runtime.worker import tie_to_parent

if TYPE_CHECKING:
    from headway.runtime.job import Job


def main() -> int:
    """Serve rank 0; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not tie_to_parent(int(sys.argv[2])):
        return 1
    link = Connection(int(sys.argv[1]))
    try:
        job, rank, rendezvous = link.recv()
    except EOFError:
        return 1
    sys.path[:] = job.import_path
    try:
        return _serve(link, job, rank, Path(rendezvous))
    except UserError as error:
        with contextlib.suppress(OSError):  # rank 0 is gone
            link.send(error)
        raise


def _serve(link: Connection, job: Job, rank: int, rendezvous: Path) -> int:
    from headway.runtime.trainer_worker import local_trainer
    from headway.trainer.ranks import Ranks

    timeout_s = job.config.deadlines.train_s
    link.send("here")
    ranks = Ranks(
        rank,
        job.config.trainer.ranks,
        rendezvous,
        timeout_s=timeout_s,
        meet_s=job.config.deadlines.start_s,
        begins=link.send,
    )
    trainer = local_trainer(job, ranks)
    link.send("ready")
    while True:
        try:
            name, arguments, named, threads = link.recv()
        except (EOFError, ConnectionError):
            break
        trainer.set_threads(threads)
        getattr(trainer, name)(*arguments, **named)
    ranks.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
