"""Settings of the endpoint that rollouts are served at, `[gateway]` in a config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.core.settings import setting


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """How programs reach their rollout."""

    listen: Literal["loopback", "unix"] = setting(
        "loopback",
        "Where an environment worker listens: at a port of 127.0.0.1, or at a socket in the run's folder. "
        "Sandboxes without a network reach it either way.",
    )
    client_sampling: Literal["ignore", "refuse"] = setting(
        "ignore",
        "What becomes of a client's temperature, top_p and the like, for answers are sampled as [generator] "
        "and the run say: passed over, or refused with an error.",
    )
    dropped_reasoning: Literal["same", "rewritten"] = setting(
        "same",
        "What an answer is that a client sends back without the reasoning it was told: the same answer, so "
        "that the sampled ids stand; or a rewritten one, which begins a branch.",
    )
    keep_alive_s: float = setting(
        20.0,
        "Seconds without an answer after which white space (or a comment, in a stream) tells the client to "
        "go on waiting.",
        gt=0,
    )
    request_timeout_s: float = setting(
        60.0,
        "Seconds in which a request that has begun must be complete; a connection may wait for one for as "
        "long as it likes.",
        gt=0,
    )
    max_request_mb: int = setting(64, "Longest body of a request, MiB.", ge=1)
