"""Settings that have no effect, or that work against one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.config.doubts import doubtful_settings
from headway.config.idle import idle_keys
from headway.runtime.preflight.findings import Finding, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.runtime.preflight.subject import Subject


def settings(subject: Subject) -> Iterator[Finding]:
    """Warn of each; a rule that is broken was an error when the config was loaded."""
    config, source = subject.config, subject.source
    found = False
    for where, key, text in idle_keys(config, source):
        found = True
        remedy = "Leave it out, or change what keeps it from acting"
        yield Finding("warning", text, remedy, key=key, where=where)
    for clash in doubtful_settings(config):
        found = True
        key = next(filter(source.is_given, clash.keys), clash.keys[0])
        yield Finding("warning", clash.rule, clash.remedy, key=clash.keys[0], where=source.where(key))
    if not found:
        name = "the overrides" if subject.path is None else str(subject.path)
        yield ok(f"{name}: every key is known, and all that are set act together")
