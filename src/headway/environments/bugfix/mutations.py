"""Single-line mutations of Python source. What lies outside the mutated span stays byte for byte.

A mutation is a span of the file's UTF-8 bytes within one line and what stands there instead. Positions come
from the syntax tree; an operator, which has none of its own there, is looked for between its operands.
Only code of functions is mutated: a test's trace tells which functions it ran, and a function is what a
policy is shown. Left alone: annotations, docstrings, f-strings (whose positions Python 3.11 does not tell),
and whatever would not compile or would be the same tree.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

from headway.environments.bugfix.operators import FunctionNode, Source, changes


@dataclass(frozen=True, slots=True)
class Mutation:
    """One bug at one place of one file."""

    operator: str  # its kind, such as "comparison"
    start: int  # of the replaced span, bytes from the file's beginning
    end: int
    text: str  # what stands there instead
    line: int  # that it is on, from 1
    function: str  # qualified name of the outermost function around it


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a module, nested ones being part of it."""

    name: str  # qualified, such as "Cache.get"
    first: int  # line of its first decorator or its def, from 1
    last: int


class UnusableSourceError(ValueError):
    """A file that cannot be mutated: not UTF-8, other line ends, or not Python of this interpreter."""


def parse(data: bytes) -> ast.Module:
    """Return the tree of a file. Raises UnusableSourceError."""
    if b"\r" in data or b"\f" in data:
        raise UnusableSourceError("lines must end with a line feed alone")
    try:
        return ast.parse(data.decode("utf-8"))
    except (SyntaxError, ValueError) as error:
        raise UnusableSourceError(str(error)) from error


def functions(tree: ast.Module) -> list[Function]:
    """Return the functions of a module in order, methods included, those within a function left out."""
    return [Function(name, first_line(node), node.end_lineno or 0) for name, node in _outermost(tree)]


def mutations(data: bytes, function: str | None = None) -> list[Mutation]:
    """Return every mutation of a file, or of one of its functions, in order of place; each of them compiles.

    Raises UnusableSourceError.
    """
    source, kept = Source(data), list[Mutation]()
    for name, node in _outermost(parse(data)):
        if function is not None and name != function:
            continue
        found: dict[tuple[int, int, str], Mutation] = {}
        for change in changes(node, source):
            if change.start < change.end and b"\n" not in data[change.start : change.end]:
                line = source.line_of(change.start)
                mutation = Mutation(change.operator, change.start, change.end, change.text, line, name)
                found.setdefault((change.start, change.end, change.text), mutation)
        first, last = source.at(first_line(node), 0), source.span(node)[1]
        original = _tree(data[first:last])
        for mutation in found.values():
            moved = replace(mutation, start=mutation.start - first, end=mutation.end - first)
            if _tree(apply(data[first:last], [moved])) not in (None, original):
                kept.append(mutation)
    return sorted(kept, key=lambda mutation: (mutation.start, mutation.end, mutation.operator, mutation.text))


def apply(data: bytes, bugs: list[Mutation]) -> bytes:
    """Return a file with these mutations, none of which overlap."""
    for bug in sorted(bugs, key=lambda bug: bug.start, reverse=True):
        data = data[: bug.start] + bug.text.encode() + data[bug.end :]
    return data


def first_line(node: FunctionNode | ast.ClassDef) -> int:
    """Return the line of a definition's first decorator, or its own, from 1; code objects tell the same."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _outermost(
    tree: ast.Module,
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    def walk(
        body: list[ast.stmt], prefix: str
    ) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield prefix + node.name, node
                case ast.ClassDef():
                    yield from walk(node.body, f"{prefix}{node.name}.")
                case ast.If() | ast.Try():
                    for part in ("body", "orelse", "finalbody"):
                        yield from walk(getattr(node, part, []), prefix)
                case _:
                    pass

    yield from walk(tree.body, "")


def _tree(function: bytes) -> str | None:
    """Return a function's tree as text, None when it does not compile."""
    text = function.decode("utf-8")
    try:
        tree = ast.parse(f"if 1:\n{text}" if text[:1].isspace() else text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(tree, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    return ast.dump(tree)
