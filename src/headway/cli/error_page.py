"""Generates docs/errors.md from the code: python -m headway.cli.error_page > docs/errors.md.

Bad input is refused where a `UserError`, or what becomes one (`Problem`, `Clash`, `Mismatch`), is made. This
module finds these places in the source and reads rule and remedy off them: literals, f-strings, both sides of
a choice, and local names that are given such values. What only passes on another's rule is no place of its
own. A test fails for a place without a readable rule or remedy.
"""

from __future__ import annotations

import ast
import importlib
import keyword
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import cast

import headway

_SOURCE = Path(headway.__file__).parent
_CARRIERS = {  # what becomes a UserError -> positions of rule and remedy among its arguments
    "Problem": (2, 3),
    "Clash": (1, 2),
    "Mismatch": (0, 1),
    "UsageError": (0, None),
}
_SETTINGS = "headway.core.settings"
_ROOMS = {
    "cli": "The command line",
    "config": "The config file",
    "core": "Values and hooks",
    "queue": "The queue's settings",
    "algorithms": "Algorithms",
    "models": "Models",
    "renderers": "Tokenizers and chat templates",
    "environments": "Environments",
    "gateway": "The gateway",
    "rewards": "Rewards",
    "sandbox": "Sandboxes",
    "generator": "The generator",
    "trainer": "The trainer",
    "weights": "Weights",
    "telemetry": "Journals, reports and exports",
    "matching": "Estimates and plans",
    "runtime": "Runs",
}
_INTRODUCTION = """\
# Errors

Every way in which input is refused, and what to do about it. This page is generated from the places in the
code that refuse it: `python -m headway.cli.error_page > docs/errors.md`.

An error is one line on stderr, and the exit code is 2:

    error: FILE:LINE: KEY: RULE (got VALUE). REMEDY

File, line and key are there where a config file or an override is the cause; all problems of a config are
shown at once. Anything else, a fault, keeps its traceback, names the run's directory and exits with 1. Names
in braces stand for what the message fills in.
"""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an expression stands."""

    function: ast.FunctionDef | ast.AsyncFunctionDef
    module: ast.Module
    use: ast.expr  # what is read: assignments below it do not count
    constants: ModuleType


@dataclass(frozen=True, slots=True)
class Refusal:
    """A place that refuses input."""

    room: str
    where: str  # file:line below the package
    key: str  # of the setting, as far as it can be read
    rules: tuple[str, ...]  # templates; empty when none could be read
    remedies: tuple[str, ...]


def refusals() -> list[Refusal]:
    """Return every place of the package that refuses input, by file and line."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(_SOURCE.rglob("*.py"))}
    errors = _user_errors(trees.values())
    return [
        refusal
        for path, tree in trees.items()
        for refusal in _of_file(path.relative_to(_SOURCE), tree, errors)
    ]


def current_page() -> str:
    """Return the page as the code stands now, as Markdown."""
    found = refusals()
    parts = [_INTRODUCTION]
    for room, title in _ROOMS.items():
        rows = sorted(
            {
                f"| {_cell(refusal.key)} | {_cell(rule)} | {_cell(' Or: '.join(refusal.remedies))} |\n"
                for refusal in found
                if refusal.room == room
                for rule in refusal.rules
            },
            key=str.lower,
        )
        if rows:
            parts.append(f"## {title}\n\n| Key | Rule | Remedy |\n| --- | --- | --- |\n{''.join(rows)}")
    return "\n".join(parts)


def _user_errors(trees: Iterable[ast.Module]) -> set[str]:
    """Return the names of UserError and of all classes below it; ConfigError only holds others."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    names = {"UserError"}
    while more := {name for name, above in bases.items() if above & names} - names:
        names |= more
    return names - {"ConfigError"}


def _of_file(path: Path, tree: ast.Module, errors: set[str]) -> Iterator[Refusal]:
    room = path.parts[0]
    others = {  # another module's class of that name
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module != _SETTINGS
        for alias in node.names
        if alias.name == "Problem"
    }
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for call in _calls(scope):
            name = _last_name(call.func)
            if name in errors:
                places: tuple[int, int | None] = (0, None)
            elif name in _CARRIERS and name not in others:
                places = _CARRIERS[name]
            else:
                continue
            rule, remedy = _argument(call, "rule", places[0]), _argument(call, "remedy", places[1])
            if rule is None or _passes_on(rule, scope):
                continue
            where, place = f"{path}:{call.lineno}", _Place(scope, tree, call, _module(path))
            rules = tuple(dict.fromkeys(_texts(rule, place)))
            remedies = () if remedy is None else tuple(dict.fromkeys(filter(None, _texts(remedy, place))))
            if name == "UsageError":  # a sentence that says both
                remedies = ("`headway COMMAND --help` shows the usage.",)
            elif name == "Mismatch" and not remedies:
                remedies = ("Give such a value.",)  # the rule says it: "must be at least 1"
            yield Refusal(room, where, _key(call, name, place), rules, remedies)


def _key(call: ast.Call, name: str, place: _Place) -> str:
    """Return the key of the setting that a refusal is about, "" where the place does not say it."""
    key = _argument(call, "key", 0 if name in ("Problem", "Clash") else None)
    if isinstance(key, ast.Tuple) and key.elts:
        key = key.elts[0]
    texts = list(_texts(key, place)) if key is not None else []
    return f"`{texts[0]}`" if texts else ""


def _module(path: Path) -> ModuleType:
    return importlib.import_module(".".join(("headway", *path.with_suffix("").parts)))


def _calls(scope: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Call]:
    """Yield the calls of a function, those of functions inside it left out."""
    waiting: list[ast.AST] = list(scope.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting += ast.iter_child_nodes(node)


def _argument(call: ast.Call, name: str, position: int | None) -> ast.expr | None:
    for item in call.keywords:
        if item.arg == name:
            return item.value
    return call.args[position] if position is not None and len(call.args) > position else None


def _passes_on(rule: ast.expr, scope: ast.AST) -> bool:
    """Say whether a rule holds an attribute `.rule`, or is a parameter: another place made it."""
    if any(isinstance(node, ast.Attribute) and node.attr == "rule" for node in ast.walk(rule)):
        return True
    if isinstance(rule, ast.Name) and isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = scope.args
        return rule.id in {
            item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        }
    return False


def _texts(node: ast.expr, place: _Place) -> Iterator[str]:
    """Yield every text that an expression may be, {name} for what is filled in; none where unreadable."""
    match node:
        case ast.Constant(value=str() as text):
            yield text
        case ast.JoinedStr():
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else _hole(part, place)
                for part in node.values
                if isinstance(part, ast.Constant | ast.FormattedValue)
            )
        case ast.BinOp(op=ast.Add()):
            for left in _texts(node.left, place):
                for right in _texts(node.right, place):
                    yield left + right
        case ast.IfExp():
            yield from _texts(node.body, place)
            yield from _texts(node.orelse, place)
        case ast.BoolOp():
            for value in node.values:
                yield from _texts(value, place)
        case ast.Call(func=ast.Attribute(attr="format", value=inner), args=[ast.Constant(value=filled)]):
            yield from (text.replace("{}", str(filled)) for text in _texts(inner, place))
        case ast.Call(func=ast.Name(id="did_you_mean")):
            yield "Did you mean {name}?"
        case ast.Call(func=ast.Name(id=name)):
            yield from _returned(name, place)
        case ast.Call(func=ast.Attribute(attr="get", value=ast.Name(id=name)), args=[_, other]):
            yield from _texts(other, place)  # the table's own entries say it more closely
            yield from _constant(name, place)
        case ast.Subscript(value=ast.Name(id=name)) | ast.Name(id=name) if name.strip("_").isupper():
            yield from _constant(name, place)
        case ast.Name():
            yield from _given(node.id, place)
        case _:
            pass


def _constant(name: str, place: _Place) -> Iterator[str]:
    """Yield a constant's text, or those in a table of them."""
    value = getattr(place.constants, name, None)
    values = cast("dict[object, object]", value).values() if isinstance(value, dict) else [value]
    yield from (text for text in values if isinstance(text, str))


def _returned(name: str, place: _Place) -> Iterator[str]:
    """Yield the texts that a function of the same module may return."""
    for function in place.module.body:
        if isinstance(function, ast.FunctionDef) and function.name == name:
            for node in ast.walk(function):
                if isinstance(node, ast.Return) and node.value is not None:
                    yield from _texts(node.value, _Place(function, place.module, node.value, place.constants))


def _given(name: str, place: _Place) -> Iterator[str]:
    """Yield the texts that a local name may have where it is used."""
    found: list[tuple[int, ast.AST, ast.expr]] = []
    for parent in ast.walk(place.function):
        for node in ast.iter_child_nodes(parent):
            match node:
                case ast.Assign(targets=[target], value=value):
                    pass
                case ast.NamedExpr(target=target, value=value):
                    pass
                case _:
                    continue
            found += [
                (node.lineno, parent, part)
                for part in _parts_for(name, target, value)
                if node.lineno <= place.use.lineno
            ]
    for _, parent, part in sorted(found, key=lambda item: item[0], reverse=True):
        yield from _texts(part, place)
        if any(node is place.use for node in ast.walk(parent)):
            return  # given on every way to the use: what stands above is gone


def _parts_for(name: str, target: ast.expr, value: ast.expr) -> Iterator[ast.expr]:
    """Yield the value that an assignment gives a name, also as one of several."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for inner, part in zip(target.elts, value.elts, strict=False):
            yield from _parts_for(name, inner, part)
    elif isinstance(target, ast.Name) and target.id == name and not _mentions(name, value):
        yield value


def _mentions(name: str, value: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value))


def _hole(part: ast.FormattedValue, place: _Place) -> str:
    """Return what an f-string fills in: a constant's text, else {word}, the last name in the expression."""
    inner = part.value
    if isinstance(inner, ast.Name) and inner.id.strip("_").isupper():
        value = getattr(place.constants, inner.id, None)
        if isinstance(value, str | int | float):
            return str(value)
    joined = inner.args[0] if isinstance(inner, ast.Call) and len(inner.args) == 1 else None
    if isinstance(joined, ast.Name) and joined.id.isupper():  # ', '.join(CHOICES)
        values = getattr(place.constants, joined.id, None)
        if isinstance(values, tuple | list | dict | frozenset):
            return ", ".join(str(value) for value in cast("Iterable[object]", values))
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "", ast.unparse(inner))
    names = [name for name in re.findall(r"[A-Za-z_]\w*", text) if not keyword.iskeyword(name)]
    return f"{{{names[-1].strip('_') if names else 'value'}}}"


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|") or "-"


if __name__ == "__main__":
    print(current_page(), end="")
