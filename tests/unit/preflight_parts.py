"""What the tests of the checks before a run share: a subject, and one check of it."""

import json

from headway.config.load import load_config
from headway.runtime.preflight.checks import CHECKS, look
from headway.runtime.preflight.subject import Subject

BASE = (
    "environment.name=arithmetic",
    "generator.max_context_tokens=64",
    "generator.max_answer_tokens=16",
    "eval.num_tasks=8",
)


def subject(model, *overrides):
    given = (f"model.path={json.dumps(str(model))}", *BASE, *overrides)
    return Subject(load_config(None, given), None, given)


def found(looked_at, *names):
    """Run these checks and return the findings of the last one; the others must be well."""
    checks = [next(check for check in CHECKS if check.name == name) for name in names]
    every = list(look(looked_at, checks))
    assert all(one.level != "error" for each in every[:-1] for one in each.findings)
    return every[-1].findings


def only(findings, level):
    """Return the one finding, which has this level, and a remedy unless it is well."""
    assert [(one.level, one.text) for one in findings] == [(level, findings[0].text)]
    assert level == "ok" or findings[0].remedy
    return findings[0]


def edit(path, name, **changes):
    contents = json.loads((path / name).read_text())
    (path / name).write_text(json.dumps(contents | changes))
