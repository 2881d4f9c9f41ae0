"""FLOPs and bytes of a decoder-only transformer, from its shape.

Formulas: the project's algorithm notes, "FLOPs and MFU"; the causal convention (half the score matrix) is
used throughout, and every MFU that is printed says so.
"""

from __future__ import annotations

from dataclasses import dataclass

MFU_CONVENTION = "causal attention, real lengths, recompute excluded"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The shape of a model with grouped-query attention, dense or with mixtures of experts in some layers.

    Attributes:
        num_params: parameters, tied embeddings counted once.
        num_layers: decoder blocks.
        hidden: width of the residual stream.
        num_heads: query heads.
        num_kv_heads: key/value heads.
        head_dim: width of one head.
        intermediate: width of the gated feed-forward layer of a block without experts.
        vocab: rows of the embedding.
        max_context_tokens: positions that the model was made for.
        num_expert_layers: blocks whose feed-forward part is a mixture of experts, 0 for a dense model.
        num_experts: of such a block.
        experts_per_token: that each token is sent to.
        expert_intermediate: width of one expert's gated feed-forward layer.
    """

    num_params: int
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_context_tokens: int
    num_expert_layers: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0

    @property
    def linear_params(self) -> int:
        """Weights that multiply a token: L*h*d*(2H + 2K) + L_dense*3*h*f + L_experts*h*(3*k*f_e + E) + V*h.

        Of E experts a token's k count, and the router; biases and norms do not.
        """
        return self._matrix_params(self.experts_per_token)

    @property
    def matrix_params(self) -> int:
        """Weights of all matrices, every expert's among them, and of the output layer, tied or not."""
        return self._matrix_params(self.num_experts)

    def _matrix_params(self, experts: int) -> int:
        attention = self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        mixture = 3 * experts * self.expert_intermediate + self.num_experts
        rows = self.num_layers * attention + self.num_dense_layers * 3 * self.intermediate
        return self.hidden * (rows + self.num_expert_layers * mixture + self.vocab)

    @property
    def num_dense_layers(self) -> int:
        """Blocks with one gated feed-forward layer for every token."""
        return self.num_layers - self.num_expert_layers

    @property
    def lora_sides(self) -> dict[str, int]:
        """Inputs + outputs of each layer of a block that can have LoRA; with experts attention alone can."""
        query, key = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        sides = {
            "q_proj": self.hidden + query,
            "k_proj": self.hidden + key,
            "v_proj": self.hidden + key,
            "o_proj": query + self.hidden,
        }
        if self.num_expert_layers:
            return sides
        return sides | dict.fromkeys(("gate_proj", "up_proj", "down_proj"), self.hidden + self.intermediate)

    def lora_params(self, rank: int, targets: str = "all-linear") -> int:
        """Parameters of LoRA factors on these layers: rank * (inputs + outputs) of each.

        `targets` is `all-linear`, every layer that can have them, or names joined by commas.
        """
        sides = self.lora_sides
        names = sides if targets == "all-linear" else [name.strip() for name in targets.split(",")]
        return self.num_layers * rank * sum(sides.get(name, 0) for name in names)

    def train_flops(self, num_tokens: int, sequence_tokens: float) -> float:
        """FLOPs of a step over `num_tokens` tokens of sequences of mean length `sequence_tokens`.

        6*N_lin + 6*L*H*d*S per token.
        """
        scores = 6 * self.num_layers * self.num_heads * self.head_dim * sequence_tokens
        return num_tokens * (6 * self.linear_params + scores)

    def lora_train_flops(self, num_tokens: int, sequence_tokens: float, lora_params: int) -> float:
        """FLOPs of a LoRA step: 4*N_base + 6*N_lora + attention, per token."""
        scores = 6 * self.num_layers * self.num_heads * self.head_dim * sequence_tokens
        return num_tokens * (4 * self.linear_params + 6 * lora_params + scores)

    def decode_flops(self, num_tokens: int, context_tokens: float) -> float:
        """FLOPs of decoding `num_tokens` at mean context `context_tokens`: 2*N_lin + 4*L*H*d*c per token."""
        scores = 4 * self.num_layers * self.num_heads * self.head_dim * context_tokens
        return num_tokens * (2 * self.linear_params + scores)

    def kv_bytes_per_token(self, bytes_per_value: int = 4) -> int:
        """Bytes of keys and values of one token in all layers: 2*L*K*d*bytes."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value
