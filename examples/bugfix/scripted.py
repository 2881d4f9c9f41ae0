"""How hard are tasks? A scripted policy that draws mutations at random tries them, without any model.

From the root of the repository:

    python examples/bugfix/scripted.py examples/bugfix/tasks.jsonl --count 10
"""

import argparse
import asyncio
from pathlib import Path

from headway.environments.bugfix.baseline import attempt
from headway.environments.bugfix.environment import LEVELS, Bugfix, BugfixSettings
from headway.environments.bugfix.settings import sandbox_settings
from headway.sandbox.leases import own_label
from headway.sandbox.pools import make_pool, settings_of


async def main(tasks, provider_name, image, count, levels, seed):
    """Print the share solved of each level."""
    settings = sandbox_settings(settings_of(provider_name), 4, image)
    provider = make_pool(settings, own_label("scripted"), warm=0)
    for level in levels:
        environment = Bugfix(BugfixSettings(tasks=tasks, levels=(level,)), seed)
        rewards = []
        for index in range(count):
            tried = await attempt(environment, environment.task("train", index, level), provider, seed)
            rewards.append(tried.reward.score)
        print(f"level {level}: {sum(rewards):g} of {count} solved", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Let a scripted policy try tasks.")
    parser.add_argument("tasks", help="File of tasks.")
    parser.add_argument("--count", type=int, default=10, help="Tasks of each level.")
    parser.add_argument("--levels", type=int, nargs="*", default=[*LEVELS])
    parser.add_argument("--provider", default="local")
    parser.add_argument(
        "--image", type=Path, help="requirements.txt beside the tasks, where the runner is pytest."
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    image = "" if given.image is None else str(given.image)
    asyncio.run(main(given.tasks, given.provider, image, given.count, given.levels, given.seed))
