"""Cases to score."""

from headway.core.protocols import Outcome
from headway.core.records import Task
from headway.rewards.case import Case


def case(
    *answers, question="What is 2 + 2?", data=None, payload=None, finish="stop", split="train", sandbox=None
):
    """A case whose transcript has these answers, each after a user's message."""
    transcript = []
    for at, answer in enumerate(answers):
        transcript.append({"role": "user", "content": question if at == 0 else f"again {at}"})
        transcript.append(
            {"role": "assistant", "content": answer, "finish": finish, "num_tokens": len(answer)}
        )
    task = Task(f"{split}/0", split, 1, payload or {})
    return Case(task, Outcome(data or {}, transcript), sandbox)
