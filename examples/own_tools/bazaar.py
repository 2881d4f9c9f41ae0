"""An environment of your own with tools, in 30 lines: buy what is asked for, as cheaply as the stalls allow.

From the root of the repository:

    headway env check examples/own_tools/bazaar.py
    headway env try examples/own_tools/bazaar.py --model smollm2
    headway train examples/own_tools/bazaar.toml
"""

import random

from headway.core.records import Reward
from headway.environments.own import OwnEnvironment
from headway.environments.tools import ToolRefusal

STALLS = ("Ada", "Bo", "Cy")


class Bazaar(OwnEnvironment):
    """Ask stalls for prices with a tool; answer with the cheapest price."""

    max_turns = 5

    def problem(self, rng: random.Random, level: int) -> dict:
        prices = {stall: rng.randint(2, 99) for stall in STALLS}
        return {"question": "Cheapest price?", "prices": prices, "answer": min(prices.values())}

    def tools(self, task, state, sandbox):
        def price(stall: str) -> int:
            """Price at a stall: Ada, Bo or Cy."""
            if stall not in task.payload["prices"]:
                raise ToolRefusal(f"there is no stall {stall}")
            state.setdefault("asked", []).append(stall)
            return task.payload["prices"][stall]

        return [price]

    def reward(self, task, outcome) -> Reward:
        right = outcome["answer"].strip() == str(task.payload["answer"])
        asked = len(set(outcome["state"].get("asked", ()))) / len(STALLS)
        return Reward(0.8 * right + 0.2 * asked, (f"{task.payload['answer']} is the lowest price",))
