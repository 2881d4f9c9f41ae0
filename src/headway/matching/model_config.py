"""Reads a model's numbers out of any Hugging Face config.json; no weights are needed, and no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headway.core.errors import ModelError
from headway.core.near import did_you_mean, nearest
from headway.matching.model_facts import Indexer, Latent, ModelNumbers, known_models
from headway.models import tiny

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHORT = {"smollm2": "SmolLM2-135M"}


def find_model(path: str) -> ModelNumbers:
    """Return the numbers of a model that is named as in a run's config.

    Args:
        path: a name of the table of models, also behind an organisation (`Qwen/Qwen3-8B`) or with a date
            (`Qwen3-235B-A22B-Thinking-2507`); a directory with config.json; such a file; or a model that
            `headway model fetch` brings, whether or not it has.

    Raises:
        ModelError: there is no such model, or its config.json does not say what is needed.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / "config.json"
    if file.is_file():
        return from_config(_read(file), str(path))
    name = _SHORT.get(path, path).rpartition("/")[2]
    by_folded = {known.casefold(): numbers for known, numbers in known_models().items()}
    folded = name.casefold()
    for known, numbers in by_folded.items():
        if folded == known or folded.startswith(f"{known}-"):
            return numbers
    if path == "tiny":
        return from_config(tiny.CONFIG, path)
    rule = "must name a model of the table, a directory with config.json, or such a file"
    remedy = did_you_mean(nearest(name, known_models()))
    remedy = remedy or "The table has " + ", ".join(known_models())
    raise ModelError(rule, value=path, remedy=remedy, key="model.path")


def _read(file: Path) -> dict[str, Any]:
    remedy = "Fetch it again from where the model is published"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelError("must be valid JSON", value=f"{file}: {error}", remedy=remedy) from error
    if not isinstance(config, dict):
        raise ModelError("config.json must hold a JSON object", value=str(file), remedy=remedy)
    found = cast("dict[str, Any]", config)
    inner = found.get("text_config")  # of a model that sees pictures too
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else found


def from_config(config: Mapping[str, Any], name: str) -> ModelNumbers:
    """Return the numbers that a config.json describes.

    Raises ModelError for a field that is missing or is no number.
    """
    need = _Fields(config, name)
    layers, hidden, heads = (
        need("num_hidden_layers"),
        need("hidden_size"),
        need("num_attention_heads"),
    )
    experts = need.any("num_experts", "n_routed_experts", "num_local_experts")
    expert_width = need("moe_intermediate_size", 0) or need("intermediate_size") if experts else 0
    shared = need.any("n_shared_experts", "num_shared_experts")
    if not shared and experts and need("shared_expert_intermediate_size", 0):
        shared = round(need("shared_expert_intermediate_size") / expert_width)
    latent = indexer = None
    if need("kv_lora_rank", 0):
        latent = Latent(
            need("q_lora_rank", 0),
            need("kv_lora_rank"),
            need("qk_nope_head_dim"),
            need("qk_rope_head_dim"),
            need("v_head_dim"),
        )
        if need("index_topk", 0):
            indexer = Indexer(need("index_n_heads"), need("index_head_dim"), need("index_topk"))
    kinds = config.get("layer_types")
    windows = cast("list[object]", kinds).count("sliding_attention") if isinstance(kinds, list) else 0
    return ModelNumbers(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=need("num_key_value_heads", 0) or heads,
        head_dim=need("head_dim", 0) or hidden // heads,
        intermediate=need("intermediate_size"),
        vocab=need("vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        dense_layers=_dense_layers(config, layers) if experts else layers,
        experts=experts,
        experts_per_token=need("num_experts_per_tok") if experts else 0,
        shared_experts=shared if experts else 0,
        expert_intermediate=expert_width,
        latent=latent,
        indexer=indexer,
        window=need("sliding_window", 0) if windows else 0,
        window_layers=windows,
        max_context_tokens=need("max_position_embeddings", 0),
        source=f"config.json of {name}",
    )


def _dense_layers(config: Mapping[str, Any], layers: int) -> int:
    """Count the layers without experts: the first ones, listed ones, or all but every n-th."""
    first = int(config.get("first_k_dense_replace") or 0)
    listed = set(cast("list[int]", config.get("mlp_only_layers") or []))
    step = int(config.get("decoder_sparse_step") or 1)
    return sum(layer < first or layer in listed or (layer + 1) % step != 0 for layer in range(layers))


class _Fields:
    """A config's whole numbers."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self._config = config
        self._name = name

    def __call__(self, field: str, default: int | None = None) -> int:
        value = self._config.get(field)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            rule = f"config.json must give {field} as a whole number"
            remedy = "Take the config.json that is published with the model"
            raise ModelError(rule, value=f"{self._name}: {value}", remedy=remedy)
        return value

    def any(self, *fields: str) -> int:
        """Return the first of these that is given, 0 when none is."""
        return next((self(field) for field in fields if self._config.get(field) is not None), 0)
