"""Mutants: copies of a source file in which one operator, number or statement is another one.

The rooms hold little that a linter could not see but a sign, a bound or an order; these are what is
changed. Annotations, docstrings, error messages, assertions and log lines stay as they are.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "/",
    ast.Mod: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.MatMult: "*",
}
_BUILTINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_METHODS = _BUILTINS | {
    "minimum": "maximum",
    "maximum": "minimum",
    "argmax": "argmin",
    "zeros": "ones",
    "ones": "zeros",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
    "floor": "ceil",
    "ceil": "floor",
    "cumsum": "cumprod",
    "mean": "sum",
    "sum": "mean",
    "std": "var",
    "var": "std",
    "exp": "expm1",
    "log": "log1p",
    "tanh": "sin",
}
_NOT_MUTATED = (ast.Raise, ast.Assert, ast.AnnAssign, ast.arguments, ast.JoinedStr, ast.Import)
_ALIKE = {"strict", "copy"}
"""Keywords whose value changes nothing: a length that is checked, an array that may be shared."""
_LOGGERS = {"_log", "logger", "logging", "warnings"}


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: Path
    function: str
    """Qualified name of the innermost function around the change."""
    line: int
    before: str
    """The changed line, stripped."""
    after: str
    source: str
    """The whole file, changed."""

    @property
    def name(self) -> str:
        """What identifies the mutant while other lines of the file come and go."""
        return f"{self.path.as_posix()} | {self.function} | {self.before} | {self.after}"


@dataclass(frozen=True)
class _Change:
    first: tuple[int, int]  # line from 0, byte column
    last: tuple[int, int]
    text: str


def mutants_of(path: Path, source: str) -> Iterator[Mutant]:
    """All mutants of a file, by line."""
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    for function, change in _changes(ast.parse(source), source, ""):
        (row, column), (last_row, last_column) = change.first, change.last
        text = change.text.encode()
        changed = lines[row][:column] + text + lines[last_row][last_column:]
        whole = b"".join([*lines[:row], changed, *lines[last_row + 1 :]]).decode()
        before = b" ".join(line.strip() for line in lines[row : last_row + 1]).decode()
        after = changed.decode().strip()
        yield Mutant(path, function, row + 1, before, after, whole)


def _changes(
    node: ast.AST, source: str, scope: str, in_function: bool = False
) -> Iterator[tuple[str, _Change]]:
    """Changes below a node, with the function each one is in."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        separator = ".<locals>." if in_function else "."
        inside = f"{scope}{separator}{node.name}" if scope else node.name
        is_function = isinstance(node, ast.FunctionDef)
        for statement in _without_docstring(node.body):
            yield from _changes(statement, source, inside, is_function)
        return
    if isinstance(node, _NOT_MUTATED) or _is_log_line(node):
        return
    if isinstance(node, ast.keyword) and node.arg in _ALIKE:
        return
    if in_function:
        yield from ((scope, change) for change in _changes_of(node, source))
    for child in ast.iter_child_nodes(node):
        if _is_open_axis(child, node):
            continue
        yield from _changes(child, source, scope, in_function)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if documented else body


def _is_log_line(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    called = node.value.func
    return (
        isinstance(called, ast.Attribute)
        and isinstance(called.value, ast.Name)
        and called.value.id in _LOGGERS
    )


def _is_open_axis(node: ast.AST, call: ast.AST) -> bool:
    """Whether it is the -1 of ``reshape(-1, ...)``, where any negative number will do."""
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "reshape"
        and node in call.args
        and ast.unparse(node) == "-1"
    )


def _changes_of(node: ast.AST, source: str) -> Iterator[_Change]:
    """Changes of this node itself."""
    if isinstance(node, ast.stmt):
        yield from _of_statement(node, source)
    elif isinstance(node, ast.Constant | ast.Name | ast.Attribute):
        yield from _of_value(node)
    elif isinstance(node, ast.expr):
        yield from _of_operation(node, source)


def _of_statement(node: ast.stmt, source: str) -> Iterator[_Change]:
    match node:
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in _ARITHMETIC:
            yield _between(target, value, _ARITHMETIC[type(op)] + "=", source)
            yield _instead(node, "pass")
        case ast.If(test=ast.Name() | ast.Attribute() | ast.Call() as test):
            yield _instead(test, f"not ({ast.unparse(test)})")
        case ast.Expr(value=ast.Call()):
            # Without a use of its class, the code would not fit into the function (trials.py).
            of_super = any(isinstance(x, ast.Name) and x.id == "super" for x in ast.walk(node))
            yield _instead(node, "__class__" if of_super else "pass")


def _of_value(node: ast.Constant | ast.Name | ast.Attribute) -> Iterator[_Change]:
    match node:
        case ast.Constant(value=bool(value)):
            yield _instead(node, str(not value))
        case ast.Constant(value=int(value)):
            yield _instead(node, str(value + 1))
        case ast.Constant(value=float(value)):
            yield _instead(node, str(2 * value if value else 1.0))
        case ast.Attribute(attr=name) if name in _METHODS:
            whole = _instead(node, _METHODS[name])
            row, column = whole.last
            yield _Change((row, column - len(name)), whole.last, whole.text)
        case ast.Name(id=name) if name in _BUILTINS:
            yield _instead(node, _BUILTINS[name])


def _of_operation(node: ast.expr, source: str) -> Iterator[_Change]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield _between(left, right, _COMPARISONS[type(op)], source)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            yield _between(left, right, _ARITHMETIC[type(op)], source)
        case ast.BoolOp(op=op, values=[left, right]):
            yield _between(left, right, "or" if isinstance(op, ast.And) else "and", source)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)):
            return  # -1 is often the last axis, and 1 the same one
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield _instead(node, f"({ast.unparse(operand)})")
        case ast.IfExp(test=test):
            yield _instead(test, f"not ({ast.unparse(test)})")


def _instead(node: ast.expr | ast.stmt, text: str) -> _Change:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return _Change(
        (node.lineno - 1, node.col_offset), (node.end_lineno - 1, node.end_col_offset), text
    )


def _between(left: ast.expr, right: ast.expr, text: str, source: str) -> _Change:
    """Another operator between two operands; parentheses around them stay."""
    assert left.end_lineno is not None
    assert left.end_col_offset is not None
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    row, column = left.end_lineno - 1, left.end_col_offset
    last_row, last_column = right.lineno - 1, right.col_offset
    if row == last_row:
        gap = lines[row][column:last_column]
    else:
        gap = (
            lines[row][column:]
            + b"".join(lines[row + 1 : last_row])
            + lines[last_row][:last_column]
        )
    kept = gap.decode()
    closing = kept[: len(kept) - len(kept.lstrip(") \n"))].rstrip(" ")
    opening = kept[len(kept.rstrip("( \n")) :].lstrip(" ")
    return _Change((row, column), (last_row, last_column), f"{closing} {text} {opening}")
