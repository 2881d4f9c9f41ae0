"""What the shell may complete an argument with. Called at each press of Tab: nothing slow is imported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    import click


def runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the run directories: those in runs/, and those below what was typed; else directories."""
    typed = Path(incomplete or "runs/")
    parent = typed if incomplete.endswith("/") or not incomplete else typed.parent
    found = sorted(
        {str(path.parent) for kind in ("journal*", "sft.jsonl") for path in parent.glob(f"*/{kind}")}
    )
    items = [CompletionItem(name) for name in found if name.startswith(incomplete)]
    return items or [CompletionItem(incomplete, type="dir")]


def overrides(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the config keys that begin so, and behind a `=` the choices of that key."""
    from headway.config.compose import Config, SftConfig
    from headway.core.schema import keys_of, sections_of

    keys = {
        f"{section}.{name}": key
        for section, settings in (sections_of(SftConfig) | sections_of(Config)).items()
        for name, key in keys_of(settings).items()
    }
    name, equals, _ = incomplete.partition("=")
    if not equals:
        return [
            CompletionItem(f"{full}=", help=key.doc)
            for full, key in keys.items()
            if full.startswith(incomplete)
        ]
    if name not in keys:
        return []
    hint = keys[name].hint
    choices = ("true", "false") if hint is bool else (*map(str, get_args(hint)), *_registered(name))
    items = (f"{name}={choice}" for choice in choices)
    return [CompletionItem(item) for item in items if item.startswith(incomplete)]


def _registered(key: str) -> tuple[str, ...]:
    """Return the names that a key takes and that its type does not say."""
    from headway.algorithms.advantages import ADVANTAGES
    from headway.algorithms.corrections import CORRECTIONS
    from headway.algorithms.losses import LOSSES
    from headway.environments.registry import names_and_summaries
    from headway.models.fetch import FETCHABLE

    match key:
        case "algorithm.advantage":
            return ADVANTAGES.names
        case "algorithm.correction":
            return CORRECTIONS.names
        case "algorithm.loss":
            return LOSSES.names
        case "environment.name":
            return tuple(name for name, _ in names_and_summaries())
        case "model.path":
            return FETCHABLE
        case _:
            return ()


def environments(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the built-in environments that begin so; else files."""
    from headway.environments.registry import FAMILIES, members, names_and_summaries

    listed = names_and_summaries()
    for family in FAMILIES if ":" in incomplete else ():
        listed += members(family)
    found = [CompletionItem(name, help=summary) for name, summary in listed if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]
