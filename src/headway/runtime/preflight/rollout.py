"""One rollout of a train task and one of an eval task, run and scored for real, but for the answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headway.core.errors import DeadlineError, EnvironmentSetupError, UserError
from headway.core.events import Scored, ScoreFailed
from headway.runtime.preflight.environments import raised
from headway.runtime.preflight.findings import Finding, failed, ok
from headway.runtime.preflight.stand_in import StandInEngine
from headway.runtime.trials import try_under
from headway.sandbox.leases import own_label
from headway.sandbox.pools import make_pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.core.protocols import Environment
    from headway.environments.trial import Trial
    from headway.runtime.preflight.subject import Subject


def rollouts(subject: Subject) -> Iterator[Finding]:
    """Run and score one task of each source and one eval task. No model is loaded: the answers are fixed."""
    told: list[str] = []
    for split, environment in _cases(subject):
        try:
            trial = asyncio.run(_try(subject, environment, split))
        except UserError:
            raise
        except DeadlineError as error:
            yield from failed(_not_in_time(environment, split, error))
            return
        except Exception as error:  # the environment's own code may raise anything
            yield from failed(raised(error, f"rolling out a {split} task"))
            return
        if not isinstance(trial.score, Scored):
            yield from failed(_failed(environment, split, trial))
            return
        reason = f" ({trial.score.reasons[0]})" if trial.score.reasons else ""
        told.append(f"{environment.name}, {split} task 0: scored {trial.score.reward:g}{reason}")
    yield ok("; ".join(told) + ". No model was loaded, the answers were fixed")


def _cases(subject: Subject) -> Iterator[tuple[str, Environment]]:
    for environment in subject.train_environments.values():
        yield "train", environment
    evaluated = subject.environments[""]
    if subject.config.eval.num_tasks and evaluated.num_tasks("eval") != 0:
        yield "eval", evaluated


async def _try(subject: Subject, environment: Environment, split: str) -> Trial:
    config, label = subject.config, own_label("try")
    engine = StandInEngine(subject.renderer, config.generator.max_context_tokens)
    provider = make_pool(config.sandbox, label)
    trial = await try_under(config, environment, engine, subject.renderer, provider, label, split=split)
    subject.context_tokens = max(subject.context_tokens, engine.longest)
    return trial


def _failed(environment: Environment, split: str, trial: Trial) -> EnvironmentSetupError:
    if isinstance(trial.score, ScoreFailed) and trial.score.cause in ("judge", "judge_away"):
        return EnvironmentSetupError(
            f"the judge must answer; a rollout of {environment.name} was not scored: {trial.score.message}",
            remedy="Start the judge, or mend [judge] (docs/rewards.md)",
            key="judge.url",
        )
    if isinstance(trial.score, ScoreFailed):
        return EnvironmentSetupError(
            f"a rollout of {environment.name} must be scored; {split} task 0 was not: {trial.score.message}",
            remedy="Mend the environment's score; headway env try shows the whole rollout",
            key="environment.name",
        )
    return EnvironmentSetupError(
        f"a rollout of {environment.name} must come to its end; {split} task 0 did not: {trial.failure}",
        remedy="Mend the environment's rollout; headway env try shows the whole rollout",
        key="environment.name",
    )


def _not_in_time(environment: Environment, split: str, error: DeadlineError) -> EnvironmentSetupError:
    return EnvironmentSetupError(
        f"a rollout of {environment.name} must end in time; {split} task 0 did not: {error.rule}",
        remedy="Raise environment.rollout_timeout_s, or look at what its rollout waits for",
        key="environment.rollout_timeout_s",
    )
