"""Builds the models of engine, trainer, workload and sandbox fleet that a SPEC describes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.core.errors import UserError
from headway.matching.contracts import EngineModel, TrainerModel
from headway.matching.engine import MeasuredEngine, RooflineEngine, num_replicas
from headway.matching.fit import check_trainer, kv_room, offload_room
from headway.matching.fleet import FleetOf
from headway.matching.hardware import BYTES, find_accelerator
from headway.matching.trainer_model import RooflineTrainer
from headway.matching.workload import DrawnWorkload

if TYPE_CHECKING:
    from headway.matching.hardware import Accelerator
    from headway.matching.spec import PoolSettings
    from headway.matching.spec_load import Spec


@dataclass(frozen=True, slots=True)
class Models:
    """What answers the scheduler's commands in a plan."""

    engine: EngineModel
    trainer: TrainerModel
    training: RooflineTrainer  # the trainer's FLOPs and peak
    workload: DrawnWorkload
    fleet: FleetOf
    replicas: int
    roofline: RooflineEngine | None  # None where nothing is known of the engine but measured times
    trainer_bytes: dict[str, float]  # of one accelerator, by kind; empty where it is not known


def models_of(spec: Spec) -> Models:
    """Return the models of a SPEC; what does not fit its memory is refused first.

    Raises:
        UserError: an unknown accelerator, or what does not fit, by how much, and the remedy.
    """
    try:
        return _models_of(spec)
    except UserError as error:
        if error.key and not error.where:
            error.where = spec.source.where(error.key)
        raise


def _models_of(spec: Spec) -> Models:
    timings, tenants = spec.timings, spec.hardware.shared_tenants
    accelerator = accelerator_of(spec.hardware.generator, "hardware.generator.accelerator")
    roofline, kv_tokens = None, timings.kv_tokens or 0
    max_running = max(1, spec.max_running // tenants)
    if accelerator is not None and spec.model is not None:
        if timings.kv_tokens is None:
            room = kv_room(spec.model, accelerator, spec.hardware.generator, spec.max_context_tokens)
            kv_tokens = room // tenants
        roofline = RooflineEngine(
            spec.model,
            accelerator,
            spec.hardware.generator,
            tenants=tenants,
            max_running=max_running,
            kv_tokens=kv_tokens,
            offload_tokens=offload_room(spec.model, spec.hardware.generator) // tenants,
        )
    engine: RooflineEngine | MeasuredEngine | None = roofline
    if engine is None or timings.decode_base_s is not None or timings.prefill_token_s is not None:
        engine = MeasuredEngine(roofline, timings, max_running=max_running, kv_tokens=kv_tokens)
    trainer, parts = _trainer(spec, accelerator)
    workload = DrawnWorkload(spec.workload, max_context_tokens=spec.max_context_tokens)
    return Models(engine, trainer, trainer, workload, FleetOf(spec.fleet), spec.replicas, roofline, parts)


def _trainer(spec: Spec, serving: Accelerator | None) -> tuple[RooflineTrainer, dict[str, float]]:
    pool, model, settings = spec.hardware.trainer, spec.model, spec.config.trainer
    accelerator = accelerator_of(pool, "hardware.trainer.accelerator")
    lora_params = None
    if not settings.full:
        lora_params = model.lora_params(settings.lora_rank) if model is not None else 0
    generator = spec.hardware.generator
    link, served = 0.0, 0.0
    if serving is not None and model is not None:
        link = serving.internode * generator.count / num_replicas(generator)
        served = model.params * BYTES[generator.weights]
    trainer = RooflineTrainer(
        model=model,
        accelerator=accelerator,
        pool=pool,
        timings=spec.timings,
        lora_params=lora_params,
        replica_link=link,
        served_bytes=served,
    )
    parts: dict[str, float] = {}
    if accelerator is not None and model is not None:
        parts = check_trainer(model, accelerator, pool, trainer.trained_params, spec.max_context_tokens)
    return trainer, parts


def accelerator_of(pool: PoolSettings, key: str) -> Accelerator | None:
    """Return a side's accelerator, None where it names none; raise UserError for an unknown one."""
    return find_accelerator(pool.accelerator, key) if pool.accelerator else None
