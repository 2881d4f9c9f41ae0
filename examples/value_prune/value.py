"""A tiny value model: a logistic regression on what a conversation looks like, and its training.

    headway train examples/value_prune/sums.toml run.name=sums
    python examples/value_prune/value.py runs/sums
    headway train examples/value_prune/prune.toml run.name=pruned
    python examples/value_prune/value.py runs/pruned --report

The second command reads the rewards of a run's journal and the conversations of its payloads, fits the model
and writes it beside this file. The third prunes by it; the fourth prints how often that was wrong.
"""

import json
import math
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path

FILE = Path(__file__).with_name("value.json")
_WEIGHTS: list[float] = json.loads(FILE.read_text()) if FILE.exists() else []


def features(messages: Sequence[tuple[str, str]]) -> list[float]:
    """Describe a conversation of (role, content): what its answers look like beside the questions.

    Nothing here adds two numbers up; that the last digits of question and answer must fit together in one of
    ten ways is left for the model to find.
    """
    numbers = fitting = long = 0
    question: list[int] = []
    for role, content in messages:
        if role == "user":
            question = [int(digits) for digits in re.findall(r"\d+", content)]
        elif role == "assistant" and len(question) == 2:
            answer = content.strip()
            numbers += answer.isdigit()
            long += len(answer) > 2
            fitting += answer.isdigit() and (int(answer) - sum(question)) % 10 == 0
    asked = max(1, sum(role == "assistant" for role, _ in messages))
    return [1.0, numbers / asked, fitting / asked, long / asked, float(fitting < asked)]


def value(weights: Sequence[float], described: Sequence[float]) -> float:
    """Return the predicted reward."""
    return 1.0 / (1.0 + math.exp(-sum(w * x for w, x in zip(weights, described, strict=True))))


def predict(record: object) -> float:
    """The hook: called at each turn's end with a ValueRecord."""
    if not _WEIGHTS:
        raise FileNotFoundError(f"{FILE} is not there yet: python {Path(__file__).name} RUN makes it")
    messages = [(message.role, message.content) for message in record.messages]  # type: ignore[attr-defined]
    return value(_WEIGHTS, features(messages))


def examples(run: Path) -> list[tuple[list[float], float]]:
    """Return (features, reward) of a run's train rollouts, one for each turn of each."""
    from headway.core.events import RolloutEnded, Scored
    from headway.core.payload import read_payload
    from headway.telemetry.journal import read_journal
    from headway.telemetry.records import Entry

    payloads, rewards = {}, {}
    for entry in read_journal(run):
        if not isinstance(entry, Entry):
            continue
        if isinstance(entry.event, RolloutEnded) and entry.event.rollout.startswith("t"):
            payloads[entry.event.rollout] = entry.event.payload
        elif isinstance(entry.event, Scored):
            rewards[entry.event.rollout] = entry.event.reward
    found: list[tuple[list[float], float]] = []
    for rollout, reference in payloads.items():
        if rollout not in rewards:
            continue
        messages = [(m["role"], m["content"]) for m in read_payload(run / "payloads", reference).transcript]
        ends = [at + 1 for at, (role, _) in enumerate(messages) if role == "assistant"]
        found += [(features(messages[:end]), rewards[rollout]) for end in ends]
    return found


def fit(data: list[tuple[list[float], float]], rounds: int = 300) -> list[float]:
    """Return weights by gradient descent on the log-likelihood."""
    weights = [0.0] * len(data[0][0])
    for _ in range(rounds):
        gradient = [0.0] * len(weights)
        for described, reward in data:
            error = reward - value(weights, described)
            for at, x in enumerate(described):
                gradient[at] += error * x
        weights = [w + 2.0 * g / len(data) for w, g in zip(weights, gradient, strict=True)]
    return weights


def main() -> None:
    """Fit, or report."""
    run = Path(sys.argv[1])
    if "--report" in sys.argv:
        summary = json.loads((run / "summary.json").read_text())
        keys = ("rl.prune.value.rollouts", "rl.prune.value.tokens", "rl.prune.audited")
        rates = ("rl.prune.wrong_fraction", "rl.prune.audited_solved_fraction")
        print("\n".join(f"{key}: {summary[key]}" for key in (*keys, *rates)))
        return
    data = examples(run)
    random.Random(0).shuffle(data)
    held, rest = data[: len(data) // 5], data[len(data) // 5 :]
    weights = fit(rest)
    FILE.write_text(json.dumps(weights))
    right = sum((value(weights, described) >= 0.5) == (reward >= 0.5) for described, reward in held)
    low = [reward for described, reward in held if value(weights, described) < 0.1]
    print(f"{len(rest)} turns; right on {right / len(held):.1%} of {len(held)} held-out turns")
    print(f"below 0.1: {len(low)} turns, of which {sum(low) / max(1, len(low)):.1%} were solved after all")


if __name__ == "__main__":
    main()
