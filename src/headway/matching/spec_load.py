"""Reads a SPEC: a run's config, every section optional, and the sections of `headway.matching.spec`."""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headway.config.clash import Clash
from headway.config.compose import EXAMPLES, Config
from headway.config.load import fix_hooks
from headway.config.model import ModelSettings
from headway.config.rules import RULES
from headway.config.scheduler import scheduler_settings
from headway.config.source import Source, read_source
from headway.config.validate import validate
from headway.core.errors import UserError
from headway.core.settings import setting
from headway.matching.cost import CostSettings
from headway.matching.engine import num_replicas
from headway.matching.model_config import find_model
from headway.matching.model_facts import ModelNumbers
from headway.matching.spec import (
    MOST_REPLICAS,
    FleetSettings,
    GeneratorPoolSettings,
    HardwareSettings,
    TimingSettings,
    TrainerPoolSettings,
    WorkloadSettings,
)
from headway.queue.settings import SchedulerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_IN_FLIGHT = 65_536
"""Rollouts in flight that a prediction takes."""
STAND_IN = "arithmetic"
"""The environment of a SPEC that names none: no part of a plan depends on it."""


@dataclass(frozen=True, slots=True)
class SpecModelSettings(ModelSettings):
    """Which model is planned with; nothing of it is loaded but its numbers."""

    path: str = setting(
        "",
        "As in a run's config, or a name of the table of models (docs/matching.md), with or without its "
        "organisation: a directory with config.json, such a file, or Qwen/Qwen3-8B.",
    )


@dataclass(frozen=True, slots=True)
class SpecSections(Config):
    """Every section of a SPEC."""

    model: SpecModelSettings
    hardware: HardwareSettings
    workload: WorkloadSettings
    fleet: FleetSettings
    timings: TimingSettings
    cost: CostSettings


@dataclass(frozen=True, slots=True)
class Spec:
    """A SPEC, checked.

    `sections` has the run's sections too, and replicas and slots as the hardware makes them.
    """

    sections: SpecSections
    scheduler: SchedulerSettings
    model: ModelNumbers | None  # None where the SPEC names none: times are measured
    source: Source
    path: Path | None  # of its file
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the file, without its ending."""
        return "spec" if self.path is None else self.path.stem

    def changed(self, *overrides: str) -> Spec:
        """Return the SPEC with further overrides; raises what `load_spec` raises."""
        return load_spec(self.path, (*self.overrides, *overrides))

    @property
    def config(self) -> Config:
        """The run's sections."""
        return self.sections

    @property
    def hardware(self) -> HardwareSettings:
        """Section [hardware]."""
        return self.sections.hardware

    @property
    def workload(self) -> WorkloadSettings:
        """Section [workload]."""
        return self.sections.workload

    @property
    def fleet(self) -> FleetSettings:
        """Section [fleet]."""
        return self.sections.fleet

    @property
    def timings(self) -> TimingSettings:
        """Section [timings]."""
        return self.sections.timings

    @property
    def replicas(self) -> int:
        """Engines."""
        return self.sections.generator.replicas

    @property
    def max_running(self) -> int:
        """Requests that one engine decodes at once, at most."""
        return self.sections.generator.max_running

    @property
    def max_context_tokens(self) -> int:
        """Context at which a rollout is cut."""
        return self.workload.max_tokens or self.sections.generator.max_context_tokens


def load_spec(path: Path | None, overrides: Sequence[str] = ()) -> Spec:
    """Read a SPEC from a TOML file, with `key=value` overrides in order, and check everything.

    Raises:
        ConfigError: with every problem found, each with key, place, value, rule and remedy.
        UserError: when the file cannot be read or is no TOML, or the model is not known.
    """
    if path is not None and path.is_dir():
        rule = "must be a SPEC, a TOML file: this is a directory"
        remedy = "Give a file"
        if any(path.glob("journal*")):
            rule, remedy = f"{rule}, of a run", f"`headway calibrate {path} --out spec.toml` makes one of it"
        raise UserError(rule, value=str(path), remedy=remedy)
    source = read_source(path, overrides)
    environment = cast("dict[str, Any]", source.values.setdefault("environment", {}))
    if isinstance(environment, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        environment.setdefault("name", STAND_IN)
    source.values.pop("sft", None)
    fix_hooks(source, Path() if path is None else path.parent)
    rules = [*RULES, something_says_how_fast, a_model_is_named, the_parts_fit_the_count]
    rules += [a_simulation_holds_it, a_prompt_fits_the_memory]
    if source.is_given("workload.prompt_tokens"):  # the default stands in where nobody knows better
        rules.append(a_prompt_leaves_room)
    sections = validate(SpecSections, source, examples=EXAMPLES, rules=rules)
    model = None
    if sections.model.path:
        try:
            model = find_model(sections.model.path)
        except UserError as error:
            error.key, error.where = "model.path", source.where("model.path")
            raise
    sections = _with_hardware(sections)
    return Spec(sections, scheduler_settings(sections), model, source, path, tuple(overrides))


@dataclass(frozen=True, slots=True)
class _CostOnly:
    cost: CostSettings


def load_cost(path: Path | None, overrides: Sequence[str] = ()) -> CostSettings:
    """Read section [cost] alone, of a SPEC or of overrides.

    Raises ConfigError for a key of it that is refused.
    """
    source = read_source(path, overrides)
    for name in [name for name in source.values if path is not None and name != "cost"]:
        del source.values[name]
    return validate(_CostOnly, source, examples={}, rules=()).cost


def _with_hardware(sections: SpecSections) -> SpecSections:
    """Return the sections with the engines that the hardware makes."""
    pool = sections.hardware.generator
    generator = sections.generator
    if pool.accelerator or pool.replicas:
        generator = dataclasses.replace(generator, replicas=num_replicas(pool))
    if pool.max_running:
        generator = dataclasses.replace(generator, max_running=pool.max_running)
    return dataclasses.replace(sections, generator=generator)


def something_says_how_fast(sections: SpecSections) -> Iterator[Clash]:
    """Each side's times come from its hardware or are measured."""
    hardware, timings = sections.hardware, sections.timings
    if not hardware.generator.accelerator and (
        timings.decode_base_s is None or timings.prefill_token_s is None
    ):
        rule = "must name an accelerator, unless [timings] has decode_base_s and prefill_token_s"
        remedy = 'Write accelerator = "H200 SXM" below [hardware.generator]'
        yield Clash(("hardware.generator.accelerator",), rule, remedy)
    if not hardware.trainer.accelerator and timings.step_base_s is None:
        rule = "must name an accelerator, unless [timings] has step_base_s and step_token_s"
        remedy = 'Write accelerator = "H200 SXM" below [hardware.trainer]'
        yield Clash(("hardware.trainer.accelerator",), rule, remedy)


def a_model_is_named(sections: SpecSections) -> Iterator[Clash]:
    """What an accelerator does depends on the model."""
    hardware = sections.hardware
    if (hardware.generator.accelerator or hardware.trainer.accelerator) and not sections.model.path:
        rule = "must name the model, for its FLOPs and bytes, where an accelerator is named"
        yield Clash(("model.path",), rule, 'Write path = "Qwen3-8B", or a directory with config.json')


def the_parts_fit_the_count(sections: SpecSections) -> Iterator[Clash]:
    """Every replica gets whole accelerators, and a trainer's parallel cuts divide its own."""
    pool = sections.hardware.generator
    if pool.prefill_count >= pool.count:
        rule = f"must be below hardware.generator.count ({pool.count}): some have to decode"
        keys = ("hardware.generator.prefill_count", "hardware.generator.count")
        yield Clash(keys, rule, "Use half of them")
        return
    yield from _the_replicas_fit(pool)
    yield from _the_trainer_fits(sections.hardware.trainer)


def _the_replicas_fit(pool: GeneratorPoolSettings) -> Iterator[Clash]:
    tensor, expert = sorted((pool.tensor_parallel, pool.expert_parallel))
    if pool.accelerator and expert % tensor:
        rule = f"must divide or be a multiple of the other kind's ({tensor} and {expert} do not)"
        keys = ("hardware.generator.tensor_parallel", "hardware.generator.expert_parallel")
        yield Clash(keys, rule, f"Use {expert} for both")
        return
    size = expert * pool.pipeline_parallel
    decode = pool.count - pool.prefill_count
    if pool.accelerator and not pool.replicas and decode // size > MOST_REPLICAS:
        rule = f"must make at most {MOST_REPLICAS} replicas (it makes {decode // size})"
        remedy = f"Use {MOST_REPLICAS * size + pool.prefill_count} or fewer, or larger replicas"
        yield Clash(("hardware.generator.count", "hardware.generator.tensor_parallel"), rule, remedy)
    if pool.accelerator and not pool.replicas and decode % size:
        rule = f"must be a multiple of the {size} that tensor, expert and pipeline parallelism make a replica"
        remedy = f"Use {max(size, decode - decode % size) + pool.prefill_count}, or set replicas"
        yield Clash(("hardware.generator.count", "hardware.generator.tensor_parallel"), rule, remedy)
    if pool.accelerator and pool.replicas and decode % pool.replicas:
        rule = f"must be divided evenly by its {pool.replicas} replicas"
        keys = ("hardware.generator.count", "hardware.generator.replicas")
        yield Clash(keys, rule, f"Use {max(1, decode // pool.replicas) * pool.replicas + pool.prefill_count}")


def _the_trainer_fits(pool: TrainerPoolSettings) -> Iterator[Clash]:
    if not pool.accelerator:
        return
    width = pool.tensor_parallel * pool.context_parallel * pool.pipeline_parallel
    experts = pool.expert_parallel * pool.pipeline_parallel
    both = math.lcm(width, experts)
    fits = max(both, pool.count - pool.count % both)
    if pool.count % width:
        rule = f"must be a multiple of tensor * context * pipeline parallelism ({width})"
        yield Clash(("hardware.trainer.count", "hardware.trainer.tensor_parallel"), rule, f"Use {fits}")
    elif pool.count % experts:
        rule = f"must be a multiple of expert * pipeline parallelism ({experts})"
        yield Clash(("hardware.trainer.count", "hardware.trainer.expert_parallel"), rule, f"Use {fits}")


def a_simulation_holds_it(sections: Config) -> Iterator[Clash]:
    """Rollouts in flight are simulated one by one."""
    queue, more = sections.queue, sections.oversampling
    groups = queue.batch_groups * (queue.max_depth + 1)
    size = queue.group_size + more.rollouts_extra
    limit = queue.max_running_rollouts or sys.maxsize
    biggest = {
        "queue.batch_size": queue.batch_size,
        "queue.depth": min(limit, groups * size),
        "oversampling.groups_extra": min(limit, (groups + more.groups_extra) * size),
    }
    for key, number in biggest.items():
        if number > MOST_IN_FLIGHT:
            rule = f"makes {number} rollouts in flight, and at most {MOST_IN_FLIGHT} can be predicted"
            keys = ("queue.depth", "queue.bound") if key == "queue.depth" else (key,)
            yield Clash(keys, rule, "Lower it, or set queue.max_running_rollouts")
            return


def a_prompt_fits_the_memory(sections: SpecSections) -> Iterator[Clash]:
    """No rollout could begin otherwise."""
    room, tenants = sections.timings.kv_tokens, sections.hardware.shared_tenants
    prompt = _longest_prompt(sections)
    if room and room // tenants <= prompt:
        rule = f"must be above {prompt * tenants}: keys and values of a prompt of {prompt} tokens have to fit"
        if tenants > 1:
            rule += f", for each of {tenants} tenants"
        remedy = "Raise it; 0 has no end"
        yield Clash(("timings.kv_tokens", "workload.prompt_tokens"), rule, remedy)


def a_prompt_leaves_room(sections: SpecSections) -> Iterator[Clash]:
    """A rollout is cut at the context."""
    name = "workload.max_tokens" if sections.workload.max_tokens else "generator.max_context_tokens"
    context = sections.workload.max_tokens or sections.generator.max_context_tokens
    prompt = _longest_prompt(sections)
    if prompt >= context:
        rule = (
            f"must be below {name} ({context}), at its longest ({prompt} tokens): no answer would have room"
        )
        yield Clash(("workload.prompt_tokens", name), rule, f"Lower it, or raise {name}")


def _longest_prompt(sections: SpecSections) -> int:
    workload = sections.workload
    return round(workload.prompt_tokens * max(1.0, workload.drift.get("prompt_tokens", 1.0)))
