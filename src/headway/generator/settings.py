"""Settings of the generator, the `[generator]` section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.core.settings import Problem, setting


@dataclass(frozen=True, slots=True)
class GeneratorSettings:
    """How answers are generated."""

    replicas: int = setting(
        1, "Generator processes; each holds the whole model. Rollouts of a group go to the same one.", ge=1
    )
    threads: int = setting(
        0, "CPU threads of each replica's decode loop; 0 lets the runtime divide the cores.", ge=0
    )
    max_running: int = setting(
        32, "Requests decoded together. As many again may keep their KV between turns.", ge=1
    )
    max_context_tokens: int = setting(512, "Longest context of one request: prompt and answer.", ge=2)
    kv_cache_mb: int = setting(
        0,
        "Cap on the KV of each replica, in MiB: requests, kept sessions and shared prompts. When it is "
        "reached, idle KV goes first, then the last request gives way and is computed anew. 0 is enough for "
        "2 * max_running whole contexts.",
        ge=0,
    )
    max_answer_tokens: int = setting(128, "Longest answer of one turn; the rollout loop asks for it.", ge=1)
    temperature: float = setting(1.0, "Sampling temperature of training rollouts; 0 is greedy.", ge=0)
    top_p: float = setting(
        1.0, "Sample among the likeliest tokens that have so much probability together; 1 is off.", gt=0, le=1
    )
    top_k: int = setting(0, "Sample among the k likeliest tokens; 0 is off.", ge=0)
    min_p: float = setting(
        0.0, "Sample among tokens at least so many times as likely as the likeliest; 0 is off.", ge=0, le=1
    )
    max_kept_ids: int = setting(
        1024,
        "Most tokens that top_p, top_k and min_p leave to draw a training token from; where they leave more, "
        "the likeliest so many. Their ids are recorded for the trainer, 4 bytes each: a token has at most "
        "4 KiB at 1024, and 80 bytes with top_k = 20.",
        ge=1,
    )
    kv_on_update: Literal["keep", "recompute"] = setting(
        "recompute",
        "What becomes of running requests' KV when new weights arrive: recompute is exact and costs a "
        "prefill of every running context, keep goes on at once with KV of the old weights.",
    )
    numerics: Literal["fast", "exact"] = setting(
        "fast",
        "exact: every token is generated through the trainer's own forward pass, which both then make of one "
        "padded sequence at a time, so that their log-probs are the same to the last bit, many times slower. "
        "fast: they differ by rounding, which each step measures (docs/numerics.md).",
    )
    prefill_chunk_tokens: int = setting(512, "Prompt tokens computed between two decode steps at most.", ge=1)
    chunk_tokens: int = setting(
        32,
        "Tokens of an answer that are handed on at once. They survive the generator's death, and pruning "
        "sees them; 0 hands on whole answers only.",
        ge=0,
    )

    max_adapters: int = setting(
        64,
        "LoRA adapters that one replica may serve beside its weights; their memory is taken as they come. "
        "For programs that use the engine: no command loads adapters yet.",
        ge=1,
    )
    max_adapter_rank: int = setting(64, "Highest rank of an adapter that is taken.", ge=1)

    @property
    def exact_context_tokens(self) -> int:
        """Positions of every forward pass with exact numerics; 0 with fast ones."""
        return self.max_context_tokens if self.numerics == "exact" else 0

    @property
    def truncates(self) -> bool:
        """Whether tokens may be left out of what is drawn from."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    def problems(self) -> list[Problem]:
        """Return the rules between these settings that do not hold."""
        found: list[Problem] = []
        if self.numerics == "exact" and self.truncates:
            found.append(
                Problem(
                    "numerics",
                    self.numerics,
                    "exact numerics draw from the whole distribution: top_p = 1, top_k = 0, min_p = 0",
                    'Set those, or numerics = "fast".',
                )
            )
        if self.max_answer_tokens >= self.max_context_tokens:
            found.append(
                Problem(
                    "max_answer_tokens",
                    self.max_answer_tokens,
                    f"an answer leaves room for a prompt in max_context_tokens = {self.max_context_tokens}",
                    "Lower max_answer_tokens or raise max_context_tokens.",
                )
            )
        if self.top_k > self.max_kept_ids:
            found.append(
                Problem(
                    "top_k",
                    self.top_k,
                    f"ids that top_k keeps are recorded, at most max_kept_ids = {self.max_kept_ids} a token",
                    "Lower top_k or raise max_kept_ids.",
                )
            )
        return found
