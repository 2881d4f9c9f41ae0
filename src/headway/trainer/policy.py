"""The trained model, whole or with LoRA factors, as packed rows need it.

The router and the experts of a mixture are trained by full fine-tuning only: peft's LoRA on them changes how
they are named and merged, and "all-linear" would take them in, so that attention alone has LoRA there.
"""

from __future__ import annotations

import contextlib
import copy
import json
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file

from headway.core.errors import HeadwayError, UserError
from headway.models.experts import unfused
from headway.models.shape import model_shape
from headway.trainer import attention
from headway.trainer.fused import fuse
from headway.trainer.logprobs import token_logprobs
from headway.trainer.packing import pack
from headway.trainer.routing import RoutingReplay

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel

    from headway.trainer.packing import PackedRow
    from headway.trainer.sequences import TrainSequence
    from headway.trainer.settings import TrainerSettings

_ADAPTER = "adapter"
_MODEL = "model"


class TrainedPolicy:
    """A model with its trainable parameters.

    There is no dropout, so a forward pass draws no random number; the LoRA factors' first values come from
    `seed` alone.
    """

    def __init__(self, model: PreTrainedModel, settings: TrainerSettings, seed: int) -> None:
        self._base: Any = model
        self._settings = settings
        self.experts = model_shape(model.config.to_dict()).experts
        self._replay = (
            RoutingReplay(model, self.experts) if self.experts and settings.replay_routing else None
        )
        model.config.use_cache = False
        model.set_attn_implementation(attention.register())
        for module in model.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.0  # pyright: ignore
        self._peft: Any = None if settings.full else _with_lora(model, settings, seed)
        fuse(model)
        if settings.full:
            model.requires_grad_(True)
        if settings.gradient_checkpointing:
            newer = getattr(model, "activation_checkpointing_enable", None)  # its name since transformers 5
            (newer or model.gradient_checkpointing_enable)({"use_reentrant": False})
            model.enable_input_require_grads()
        model.train(settings.gradient_checkpointing)  # transformers checkpoints in train mode only

    @property
    def vocab(self) -> int:
        """Token ids that the model knows."""
        return self._base.get_input_embeddings().num_embeddings

    @property
    def dtype(self) -> torch.dtype:
        """Type of the base weights."""
        return self._base.dtype

    @property
    def base_model_name(self) -> str:
        """Where the base weights came from, or an empty string."""
        return str(self._base.config.name_or_path or "")

    def trainable(self) -> dict[str, Tensor]:
        """Return the parameters that the optimizer moves, by name; tied ones once."""
        return {name: p for name, p in self._base.named_parameters() if p.requires_grad}

    def rows(self, sequences: Sequence[TrainSequence]) -> list[PackedRow]:
        """Return the forward passes that these sequences take."""
        return pack(sequences, self._settings.micro_batch_tokens)

    def logprobs(self, row: PackedRow) -> tuple[Tensor, Tensor]:
        """Return log-probs (differentiable) and entropies of a row's t trained tokens, nats, both [t]."""
        if self._replay is not None:
            self._replay.routes = row.routes
        output = self._base.model(
            input_ids=row.token_ids[None],
            position_ids=row.position_ids[None],
            blocks=row.blocks,
        )
        hidden = output.last_hidden_state[0].index_select(0, row.predict_at)
        head = self._base.get_output_embeddings().weight
        logp, entropy = token_logprobs(hidden, head, row.targets, row.temperatures, row.kept)
        return logp[row.copies], entropy[row.copies]

    @contextlib.contextmanager
    def as_reference(self) -> Generator[None]:
        """Be the checkpoint that the run began from, inside the block; HeadwayError with full fine-tuning."""
        if self._peft is None:
            rule = "the reference policy is kept with LoRA only: full fine-tuning overwrites it"
            raise HeadwayError(rule, remedy="Set trainer.full = false", key="trainer.full")
        with self._peft.disable_adapter():
            yield

    def published(self) -> dict[str, Tensor]:
        """Return LoRA factors under PEFT names, or all weights under Hugging Face names."""
        if self._peft is None:
            return dict(unfused(self._base.named_parameters()))
        return get_peft_model_state_dict(self._peft, save_embedding_layers=False)

    def capture(self) -> Callable[[Path], None]:
        """Copy the weights, and return what writes them into a checkpoint, in any thread.

        They become a PEFT adapter, or a model that transformers loads.
        """
        tensors = {name: tensor.detach().clone().contiguous() for name, tensor in self.published().items()}

        def write(directory: Path) -> None:
            if self._peft is None:
                # What save_pretrained writes, without its progress bar.
                self._base.config.save_pretrained(directory / _MODEL)
                file = directory / _MODEL / "model.safetensors"
                save_file(tensors, file, {"format": "pt"})
            else:
                (directory / _ADAPTER).mkdir()
                file = directory / _ADAPTER / "adapter_model.safetensors"
                save_file(tensors, file, {"format": "pt"})
                self._adapter_config().save_pretrained(directory / _ADAPTER)
            file.chmod(0o644)  # safetensors lets nobody else read it, unlike the checkpoint's other files

        return write

    def _adapter_config(self) -> Any:
        config = copy.copy(self._peft.peft_config["default"])
        config.base_model_name_or_path = self.base_model_name or None
        config.inference_mode = True
        return config

    def load(self, directory: Path) -> None:
        """Take the weights of a checkpoint, exactly; UserError when it is of another kind or shape."""
        kind = _MODEL if self._peft is None else _ADAPTER
        if not (directory / kind).is_dir():
            rule = (
                f"checkpoint {directory} must hold {kind}/ to go on with trainer.full = {self._peft is None}"
            )
            raise UserError(
                rule, remedy="Resume with the settings that the run began with", key="trainer.full"
            )
        tensors: dict[str, Tensor] = {}
        for file in sorted((directory / kind).glob("*.safetensors")):
            tensors |= load_file(file)
        if self._peft is None:
            self._load_full(tensors, directory)
        else:
            self._load_adapter(tensors, directory)

    def _load_full(self, tensors: dict[str, Tensor], directory: Path) -> None:
        with torch.no_grad():
            own = self.published()
            _check_shapes(own, tensors, directory)
            for name, parameter in own.items():
                parameter.copy_(tensors[name])

    def _load_adapter(self, tensors: dict[str, Tensor], directory: Path) -> None:
        _check_shapes(self.published(), tensors, directory)
        alpha = json.loads((directory / _ADAPTER / "adapter_config.json").read_text(encoding="utf-8"))[
            "lora_alpha"
        ]
        if alpha != self._settings.lora_alpha:
            rule = f"lora_alpha must be {alpha}, as in checkpoint {directory}"
            raise UserError(
                rule,
                value=self._settings.lora_alpha,
                key="trainer.lora_alpha",
                remedy="Resume with the settings that the run began with",
            )
        set_peft_model_state_dict(self._peft, tensors)


def _lora_targets(model: PreTrainedModel, targets: str) -> Any:
    """Return the layers that get factors, as peft wants them.

    With experts they are named one by one: peft's own all-linear would adapt the router and the experts too.
    """
    facts = model_shape(model.config.to_dict()).facts()
    if targets == "all-linear":
        return sorted(facts.lora_sides) if facts.num_expert_layers else targets
    names = sorted(facts.lora_sides)
    chosen = [name.strip() for name in targets.split(",")]
    if missing := [name for name in chosen if name not in names]:
        why = ": in a model with experts attention alone can have LoRA" if facts.num_expert_layers else ""
        raise UserError(
            f"lora_targets must be all-linear or some of {', '.join(names)}{why}",
            value=missing[0],
            key="trainer.lora_targets",
            remedy="Leave out the names that are not there",
        )
    return chosen


def _with_lora(model: PreTrainedModel, settings: TrainerSettings, seed: int) -> Any:
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,  # pyright: ignore - a float is fine
        target_modules=_lora_targets(model, settings.lora_targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def _check_shapes(own: dict[str, Tensor], found: dict[str, Tensor], directory: Path) -> None:
    for name, tensor in own.items():
        shape = tuple(found[name].shape) if name in found else None
        if shape != tuple(tensor.shape):
            rule = f"checkpoint {directory} must fit the model: {name} has shape {tuple(tensor.shape)} here"
            raise UserError(
                rule, value=shape, remedy="Resume with the model and rank that the run began with"
            )
