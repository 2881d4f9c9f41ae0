"""The entry of the trainer's ranks above 0: `python -m headway.runtime.rank_worker FD PARENT`.

It consumes operations from the socket FD, the first message being its job, and does each with the other
ranks. It waits for the next one as long as rank 0 lives, and leaves when rank 0 closes the socket. What it
raises goes to the trainer's log, and ends it: rank 0 finds that out in the operation that it shares.
"""

from __future__ import annotations

import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from headway.core.errors import HeadwayError
from headway.runtime.worker import tie_to_parent


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
    from headway.runtime.ranked import PATIENCE
    from headway.runtime.trainer_worker import local_trainer
    from headway.trainer.ranks import Ranks

    timeout_s = PATIENCE * job.config.deadlines.train_s
    ranks = Ranks(rank, job.config.trainer.ranks, Path(rendezvous), timeout_s=timeout_s)
    trainer = local_trainer(job, ranks)
    while True:
        try:
            name, arguments, named, threads = link.recv()
        except (EOFError, ConnectionError):
            break
        trainer.set_threads(threads)
        begun = ranks.num_begun
        try:
            getattr(trainer, name)(*arguments, **named)
        except HeadwayError:
            if ranks.num_begun != begun:
                raise
            # Refused before the ranks met in it: rank 0 refuses it alike, and nothing was computed anywhere.
    ranks.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
