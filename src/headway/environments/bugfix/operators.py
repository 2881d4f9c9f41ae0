"""The kinds of bugs, each as a change of the text of one node.

Kinds: comparison, arithmetic, boolean, constant (off by one, True for False), default (of a parameter),
return (dropped), branch (never or always taken), condition (negated), await (dropped), arguments (swapped),
name (another local variable), method (its counterpart), statement (dropped).
"""

from __future__ import annotations

import ast
import bisect
import re
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, cast

Kind = Literal[
    "comparison", "arithmetic", "boolean", "constant", "default", "return", "branch", "condition", "await",
    "arguments", "name", "method", "statement",
]  # fmt: skip
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Change(NamedTuple):
    """Bytes of a file and what stands there instead."""

    operator: str
    start: int
    end: int
    text: str


class Source:
    """A file's bytes by line and column, as the syntax tree counts them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._starts = [0, *(match.end() for match in re.finditer(rb"\n", data))]

    def at(self, line: int, column: int) -> int:
        """Return the offset of a line (from 1) and a column in bytes."""
        return self._starts[line - 1] + column

    def line_of(self, offset: int) -> int:
        """Return the line, from 1, that an offset is on."""
        return bisect.bisect_right(self._starts, offset)

    def span(self, node: ast.expr | ast.stmt | ast.arg) -> tuple[int, int]:
        """Return where a node begins and ends."""
        end = self.at(node.end_lineno or node.lineno, node.end_col_offset or 0)
        return self.at(node.lineno, node.col_offset), end

    def text(self, node: ast.expr | ast.stmt) -> str:
        """Return a node's own text."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def between(self, left: ast.expr, right: ast.expr, token: str) -> tuple[int, int] | None:
        """Return where a token is between two operands on one line; None when that is not plain."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.data[start:end]
        match = re.search(token.encode(), gap)
        if match is None or b"\n" in gap or b"#" in gap:
            return None
        return start + match.start(), start + match.end()


_COMPARED: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: (r"<", ("<=", ">")),
    ast.LtE: (r"<=", ("<", ">=")),
    ast.Gt: (r">", (">=", "<")),
    ast.GtE: (r">=", (">", "<=")),
    ast.Eq: (r"==", ("!=",)),
    ast.NotEq: (r"!=", ("==",)),
    ast.Is: (r"\bis\b", ("is not",)),
    ast.IsNot: (r"\bis\s+not\b", ("is",)),
    ast.In: (r"\bin\b", ("not in",)),
    ast.NotIn: (r"\bnot\s+in\b", ("in",)),
}
_COMPUTED: dict[type[ast.operator], tuple[str, tuple[str, ...]]] = {
    ast.Add: (r"\+", ("-",)),
    ast.Sub: (r"-", ("+",)),
    ast.Mult: (r"\*", ("+", "/")),
    ast.Div: (r"/", ("*", "//")),
    ast.FloorDiv: (r"//", ("*", "/")),
    ast.Mod: (r"%", ("*",)),
    ast.Pow: (r"\*\*", ("*",)),
    ast.LShift: (r"<<", (">>",)),
    ast.RShift: (r">>", ("<<",)),
    ast.BitAnd: (r"&", ("|",)),
    ast.BitOr: (r"\|", ("&",)),
    ast.BitXor: (r"\^", ("&",)),
}
_PAIRS = (
    ("startswith", "endswith"), ("lstrip", "rstrip"), ("upper", "lower"), ("find", "rfind"),
    ("index", "rindex"), ("split", "rsplit"), ("partition", "rpartition"), ("ljust", "rjust"),
    ("append", "extend"), ("keys", "values"),
    ("union", "intersection"), ("popleft", "pop"), ("min", "max"), ("any", "all"), ("update", "setdefault"),
)  # fmt: skip
_COUNTERPARTS = dict(_PAIRS) | {second: first for first, second in _PAIRS}


def changes(function: FunctionNode, source: Source) -> Iterator[Change]:
    """Return every change of a function's own code, nested functions included, in no particular order."""
    names = _locals(function)
    for node in _code(function):
        for kind in _KINDS:
            yield from kind(node, source)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
            at = names.index(node.id)
            if len(names) > 1:
                yield Change("name", *source.span(node), names[(at + 1) % len(names)])


def _code(function: FunctionNode) -> Iterator[ast.AST]:
    """Return the nodes of a function that are code: no annotations, f-strings, docstrings or decorators."""
    waiting: list[ast.AST] = [function]
    while waiting:
        node = waiting.pop()
        yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            children = cast("list[object]", value) if isinstance(value, list) else [value]
            waiting += [
                child
                for child in children
                if isinstance(child, ast.AST) and not isinstance(child, (ast.JoinedStr, ast.expr_context))
            ]


def _locals(function: FunctionNode) -> list[str]:
    """Return the names that a function's parameters and assignments bind, in order of first appearance."""
    spec = function.args
    found = dict.fromkeys(arg.arg for arg in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs])
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.id)
    return [name for name in found if name not in ("self", "cls", "_")]


def _comparison(node: ast.AST, source: Source) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for left, op, right in zip(operands, node.ops, operands[1:], strict=False):
            token, others = _COMPARED[type(op)]
            if (place := source.between(left, right, token)) is not None:
                for other in others:
                    yield Change("comparison", *place, other)


def _arithmetic(node: ast.AST, source: Source) -> Iterator[Change]:
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _COMPUTED:
        token, others = _COMPUTED[type(node.op)]
        left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
        if isinstance(left, ast.Constant) and isinstance(left.value, str):
            return  # a format
        if (place := source.between(left, right, token)) is not None:
            for other in others:
                yield Change("arithmetic", *place, other)


def _boolean(node: ast.AST, source: Source) -> Iterator[Change]:
    if isinstance(node, ast.BoolOp):
        word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            if (place := source.between(left, right, rf"\b{word}\b")) is not None:
                yield Change("boolean", *place, other)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        start, _ = source.span(node)
        yield Change("boolean", start, source.span(node.operand)[0], "")


def _constant(node: ast.AST, source: Source) -> Iterator[Change]:
    match node:
        case ast.Constant(value=bool(value)):
            yield Change("constant", *source.span(node), str(not value))
        case ast.Constant(value=int(value)) if abs(value) < 1000 and source.text(node).isdigit():
            yield Change("constant", *source.span(node), str(value + 1))
            if value > 0:
                yield Change("constant", *source.span(node), str(value - 1))
        case _:
            pass


def _default(node: ast.AST, source: Source) -> Iterator[Change]:
    if isinstance(node, ast.arguments):
        for value in [*node.defaults, *node.kw_defaults]:
            match value:
                case ast.Constant(value=None):
                    yield Change("default", *source.span(value), "0")
                case ast.Constant(value=str(text)) if text:
                    yield Change("default", *source.span(value), '""')
                case ast.Constant(value=bool(flag)):
                    yield Change("default", *source.span(value), str(not flag))
                case ast.Constant(value=int(number)) if source.text(value).isdigit():
                    yield Change("default", *source.span(value), str(number + 1))
                case _:
                    pass


def _dropped(node: ast.AST, source: Source) -> Iterator[Change]:
    match node:
        case ast.Return(value=ast.expr() as value):
            yield Change("return", source.span(node)[0], source.span(value)[0], "")
        case ast.Await(value=value):
            yield Change("await", source.span(node)[0], source.span(value)[0], "")
        case ast.AugAssign() | ast.Break() | ast.Continue():
            yield Change("statement", *source.span(node), "pass")
        case ast.Expr(value=ast.Call() | ast.Yield()):
            yield Change("statement", *source.span(node), "pass")
        case _:
            pass


def _branch(node: ast.AST, source: Source) -> Iterator[Change]:
    if isinstance(node, (ast.If, ast.IfExp)):
        start, end = source.span(node.test)
        test = source.text(node.test)
        plain = isinstance(node.test, (ast.Name, ast.Attribute, ast.Call, ast.Constant, ast.Subscript))
        if isinstance(node, ast.If):
            yield Change("branch", start, end, "False")
            if not node.orelse:
                yield Change("branch", start, end, "True")
        if not isinstance(node.test, ast.Compare):  # whose negation is another comparison
            yield Change("condition", start, end, f"not {test}" if plain else f"not ({test})")


def _arguments(node: ast.AST, source: Source) -> Iterator[Change]:
    if isinstance(node, ast.Call) and len(node.args) >= 2:
        for first, second in zip(node.args, node.args[1:], strict=False):
            if isinstance(first, ast.Starred) or isinstance(second, ast.Starred):
                continue
            start, end = source.span(first)[0], source.span(second)[1]
            gap = source.data[source.span(first)[1] : source.span(second)[0]].decode()
            if source.text(first) != source.text(second) and gap.strip() == ",":
                yield Change("arguments", start, end, f"{source.text(second)}{gap}{source.text(first)}")


def _method(node: ast.AST, source: Source) -> Iterator[Change]:
    if isinstance(node, ast.Call):
        called = node.func
        _, end = source.span(called)
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name in _COUNTERPARTS:
            yield Change("method", end - len(name), end, _COUNTERPARTS[name])


_KINDS: tuple[Callable[[ast.AST, Source], Iterator[Change]], ...] = (
    _comparison, _arithmetic, _boolean, _constant, _default, _dropped, _branch, _arguments, _method,
)  # fmt: skip
