"""Parameters, FLOPs and bytes of a transformer, from its shape: dense or with experts, GQA or MLA.

Formulas (L layers, h hidden, H heads, K key/value heads, d head width, f feed-forward width, f_e that of an
expert, E experts of which k count for a token and s always do, V vocabulary):
    attention, GQA   h d (2 H + 2 K)
    attention, MLA   h q + q H (n + r) + h (c + r) + c H (n + v) + H v h; q and c are the ranks of queries and
                     of keys and values, n and r the parts of a key without and with position, v a value.
                     A sparse-attention indexer adds q I i + h i + h I (I heads of width i).
    feed-forward     3 h f of a dense layer; h E + 3 h f_e (E + s) with experts, k + s for the active ones
    embedding        V h, twice where the output layer is not tied to it
Norms and biases are left out: below 0.01 % of the parameters. Training takes 6 FLOPs a token for each active
weight that multiplies it (the input embedding does not) and 6 L a S of attention, causal: a is H d, or the
mean of query and value width times H with MLA; S the sequence. Decoding takes 2 and 4 L a c.
"""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib import resources

CONVENTION = "causal attention, real lengths, recompute excluded"
"""Of every FLOP that this module counts, and so of every MFU that is made of them."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: keys and values are kept as one compressed vector."""

    query_rank: int  # 0 for queries that are not compressed
    kv_rank: int
    nope_dim: int  # of a head's key, without position
    rope_dim: int  # with position, shared by the heads
    value_dim: int


@dataclass(frozen=True, slots=True)
class Indexer:
    """Sparse attention: a small scorer chooses the tokens that a query attends to."""

    heads: int
    dim: int
    top_tokens: int


@dataclass(frozen=True, slots=True)
class ModelNumbers:
    """A model's shape, and what it costs."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int  # of a dense layer
    vocab: int
    tied: bool  # the output layer is the embedding
    dense_layers: int  # those without experts
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_intermediate: int = 0
    latent: Latent | None = None
    indexer: Indexer | None = None
    window: int = 0  # tokens that a layer with a sliding window sees
    window_layers: int = 0
    max_context_tokens: int = 0
    source: str = ""

    @property
    def attention_params(self) -> int:
        """Weights of one layer's attention."""
        h, heads = self.hidden, self.heads
        if self.latent is None:
            return h * self.head_dim * (2 * heads + 2 * self.kv_heads)
        mla = self.latent
        width = mla.nope_dim + mla.rope_dim
        query = h * mla.query_rank + mla.query_rank * heads * width if mla.query_rank else h * heads * width
        kv = h * (mla.kv_rank + mla.rope_dim) + mla.kv_rank * heads * (mla.nope_dim + mla.value_dim)
        params = query + kv + heads * mla.value_dim * h
        if self.indexer is not None:
            index = self.indexer
            params += (mla.query_rank or h) * index.heads * index.dim + h * index.dim + h * index.heads
        return params

    @property
    def expert_layers(self) -> int:
        """Layers with a mixture of experts."""
        return self.layers - self.dense_layers

    @property
    def expert_params(self) -> int:
        """Weights of one expert of one layer."""
        return 3 * self.hidden * self.expert_intermediate

    @property
    def routed_params(self) -> int:
        """Weights of all routed experts of all layers: what a batch touches in part."""
        return self.expert_layers * self.experts * self.expert_params

    @property
    def embedding_params(self) -> int:
        """Input embedding and output layer."""
        return self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def params(self) -> int:
        """All parameters."""
        return self._with_experts(self.experts) + self.embedding_params

    @property
    def active_params(self) -> int:
        """Those that a token meets, embeddings included: what model cards call active."""
        return self._with_experts(self.experts_per_token) + self.embedding_params

    @property
    def linear_params(self) -> int:
        """Those that multiply a token: active ones, the output layer but not the input embedding."""
        return self._with_experts(self.experts_per_token) + self.vocab * self.hidden

    @property
    def dense_params(self) -> int:
        """Weights that every decode iteration reads: all but routed experts and the input embedding."""
        return self._with_experts(0) + self.vocab * self.hidden

    def _with_experts(self, routed: int) -> int:
        mixture = 0
        if self.expert_layers:
            mixture = self.hidden * self.experts + self.expert_params * (routed + self.shared_experts)
        dense = self.dense_layers * 3 * self.hidden * self.intermediate
        return self.layers * self.attention_params + dense + self.expert_layers * mixture

    @property
    def score_width(self) -> float:
        """L * a: what a token's attention costs for each token that it sees, in pairs of FLOPs halved."""
        if self.latent is None:
            return float(self.layers * self.heads * self.head_dim)
        mla = self.latent
        return self.layers * self.heads * (mla.nope_dim + mla.rope_dim + mla.value_dim) / 2

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that one token's keys and values are, in all layers; an indexer's keys are not counted."""
        if self.latent is None:
            return 2 * self.layers * self.kv_heads * self.head_dim
        return self.layers * (self.latent.kv_rank + self.latent.rope_dim)

    def kv_bytes_per_token(self, bytes_per_value: float = 2.0) -> float:
        """Bytes of one token's keys and values."""
        return self.kv_values_per_token * bytes_per_value

    @property
    def windowed_share(self) -> float:
        """Of the keys and values, those of layers that see no more than `window` tokens."""
        return self.window_layers / self.layers

    def held_tokens(self, context: float) -> float:
        """Tokens' worth of keys and values that a context takes: less than its own with sliding windows."""
        if not self.window_layers:
            return context
        share = self.windowed_share
        return (1 - share) * context + share * min(context, self.window)

    def seen_tokens(self, context: float) -> float:
        """Tokens that a query attends to, mean over the layers."""
        if self.indexer is not None:
            return min(context, self.indexer.top_tokens)
        return self.held_tokens(context)

    def train_flops(self, num_tokens: float, sum_squares: float, *, lora_params: int | None = None) -> float:
        """FLOPs of a step over sequences whose lengths sum to `num_tokens` and squares to `sum_squares`.

        6 N per token, or with LoRA 4 N + 6 N_lora; 6 L a S of attention.
        """
        weights = 6.0 * self.linear_params
        if lora_params is not None:
            weights = 4.0 * self.linear_params + 6.0 * lora_params
        seen = sum_squares
        if self.indexer is not None or self.window_layers:
            mean = sum_squares / num_tokens if num_tokens else 0.0
            seen = num_tokens * min(mean, 2.0 * self.seen_tokens(mean))  # causal: S stands for S / 2 seen
        return num_tokens * weights + 6.0 * self.score_width * seen

    def decode_flops(self, num_tokens: float, context: float) -> float:
        """FLOPs of decoding `num_tokens` tokens at this mean context: 2 N + 4 L a c."""
        return num_tokens * (2.0 * self.linear_params + 4.0 * self.score_width * self.seen_tokens(context))

    def prefill_flops(self, num_tokens: float, context: float) -> float:
        """FLOPs of computing `num_tokens` new tokens behind `context` cached ones."""
        return self.decode_flops(num_tokens, context + num_tokens / 2)

    def lora_params(self, rank: int) -> int:
        """Parameters of LoRA factors on attention, and on the feed-forward part of a model without experts.

        With MLA, its four projections of hidden and head width are taken as one pair of each.
        """
        if self.latent is None:
            query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
            sides = 2 * (self.hidden + query) + 2 * (self.hidden + key)
        else:
            sides = 4 * (self.hidden + self.heads * self.latent.value_dim)
        if not self.expert_layers:
            sides += 3 * (self.hidden + self.intermediate)
        return self.layers * rank * sides


@functools.cache
def known_models() -> dict[str, ModelNumbers]:
    """Return the models of the package's table, by name."""
    text = resources.files("headway.matching").joinpath("data/models.csv").read_text(encoding="utf-8")
    return {row["model"]: _from_row(row) for row in csv.DictReader(text.splitlines())}


def _from_row(row: dict[str, str]) -> ModelNumbers:
    number = {key: int(value) for key, value in row.items() if value.isdecimal()}

    def get(name: str) -> int:
        return number.get(name, 0)

    latent = indexer = None
    if get("kv_lora"):
        latent = Latent(get("q_lora"), get("kv_lora"), get("qk_nope"), get("qk_rope"), get("v_dim"))
    if get("index_heads"):
        indexer = Indexer(get("index_heads"), get("index_dim"), get("index_topk"))
    return ModelNumbers(
        name=row["model"],
        layers=get("layers"),
        hidden=get("hidden"),
        heads=get("heads"),
        kv_heads=get("kv_heads"),
        head_dim=get("head_dim"),
        intermediate=get("inter"),
        vocab=get("vocab"),
        tied=bool(get("tied")),
        dense_layers=get("dense_layers"),
        experts=get("experts"),
        experts_per_token=get("topk"),
        shared_experts=get("shared"),
        expert_intermediate=get("moe_inter"),
        latent=latent,
        indexer=indexer,
        window=get("window"),
        window_layers=get("window_layers"),
        max_context_tokens=get("max_context"),
        source=row["source"],
    )
