"""The queue: what an event costs, what 10,000 rollouts cost, and how near the loop comes to its bounds.

    python benchmarks/whole_queue.py [--rounds 3] [--only events live efficiency]

- events: the scheduler's cost per event with 100 to 100,000 rollouts in flight (queue_events.py).
- live: the live driver and an environment worker with 10,000 rollouts at once (live_load.py).
- efficiency: rollouts trained a second against the smaller of the pure generation and the pure training
  rate, with tools that make rollouts long-tailed; synchronous, asynchronous, and with stragglers set aside
  (queue_efficiency.py).

The last line is one JSON object. Absolute times mean little on a shared machine; ratios come from one run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from keep import keep
from queue_efficiency import efficiency
from queue_events import scheduler_cost

PARTS = ("events", "live", "efficiency")


def main() -> None:
    """Run the parts and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the efficiency runs")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    result: dict[str, object] = {}
    if "events" in arguments.only:
        result |= scheduler_cost()
    if "live" in arguments.only:
        command = [sys.executable, str(Path(__file__).with_name("live_load.py"))]  # its memory is measured
        result |= json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if "efficiency" in arguments.only:
        result |= efficiency(arguments.rounds)
    keep("queue", result)


if __name__ == "__main__":
    main()
