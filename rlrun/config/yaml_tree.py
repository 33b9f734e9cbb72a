"""Strict YAML with the place of every key: text in, a tree of nodes out.

Owns: the meaning of scalars, duplicate keys, and malformed files. Must not know: which keys there
are. Numbers are decimal: ``1``, ``-3``, ``300_000``, ``0.5``, ``1e-4``, ``1e6``. ``012``, ``0x10``
and ``1:30``, which YAML parsers interpret differently, are text, as are ``on``, ``off``, ``yes``
and ``no``. Keys are text, except in arguments of code (`with_keys`).
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path as FilePath
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.reader import ReaderError
from yaml.resolver import Resolver

from rlrun.config.problems import ConfigError, Origin, Path, Problem, join

_INT = re.compile(r"^[-+]?(0|[1-9][0-9]*(_[0-9]+)*)$")
FLOAT = re.compile(
    r"^[-+]?((0|[1-9][0-9]*(_[0-9]+)*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$"
)  # Whole numbers match too.
_SPECIAL: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{
        f"{sign}{name}": float(f"{sign}inf") for sign in ("", "+", "-") for name in (".inf", ".Inf")
    },
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_MOST_NODES = 10_000  # Aliases of aliases can make a short file endless.
MOST_LEVELS = 50
"""Most levels of nested values; far fewer than Python's limit of nested calls."""
_TOO_DEEP = f"nested more than {MOST_LEVELS} levels deep"


@dataclass(frozen=True)
class Node:
    """A value and the place of its key; mappings and lists contain nodes again."""

    value: Any  # dict[str, Node] | list[Node] | str | int | float | bool | None
    origin: Origin

    def plain(self) -> Any:
        """The value alone."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def child(self, part: str | int) -> "Node | None":
        """The node one step down, if there is one."""
        if isinstance(self.value, dict):
            return self.value.get(part)
        if isinstance(self.value, list) and isinstance(part, int):
            return self.value[part] if part < len(self.value) else None
        return None


class Bare(str):
    """A key that stands without quotes and is not text as a value: ``1``, ``0.5``, ``true``."""

    __slots__ = ()


def as_key(text: str) -> str:
    """A key that stands without quotes."""
    return text if isinstance(parse_scalar(text), str) else Bare(text)


def with_keys(value: Any) -> Any:
    """A value with `Bare` keys converted to numbers, booleans or None."""
    if isinstance(value, dict):
        return {
            parse_scalar(key) if isinstance(key, Bare) else key: with_keys(item)
            for key, item in value.items()
        }
    return type(value)(map(with_keys, value)) if type(value) in (list, tuple) else value


def from_plain(value: Any, origin: Origin, path: Path = ()) -> Node:
    """A tree of nodes with one origin; numbers and arrays of numpy become plain values.

    Raises:
        ConfigError: a value cannot be written to a file.
    """
    if hasattr(type(value), "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        keys = [(_key_of(key, origin, path), item) for key, item in value.items()]
        nodes = {key: from_plain(item, origin, (*path, key)) for key, item in keys}
        if len(nodes) < len(keys):
            raise ConfigError([Problem(origin, join(path), "holds a key as text and as a number")])
        return Node(nodes, origin)
    if isinstance(value, list | tuple):
        items = [from_plain(item, origin, (*path, i)) for i, item in enumerate(value)]
        is_list = isinstance(value, list)
        return Node(items if is_list else tuple(item.plain() for item in items), origin)
    if value is not None and type(value) not in (bool, int, float, str):
        raise ConfigError([Problem(origin, join(path), f"{_NOT_PLAIN}, got {value!r}"[:200])])
    return Node(value, origin)


_NOT_PLAIN = "expected what a file can hold: numbers, text, true, false, null, lists and mappings"


def _key_of(key: Any, origin: Origin, path: Path) -> str:
    if isinstance(key, str):
        return key
    key = key.tolist() if hasattr(type(key), "tolist") else key
    if key is None or isinstance(key, bool | int | float):
        return Bare("null" if key is None else str(key).lower())
    message = f"a key must be text or a number, got {key!r}"[:200]
    raise ConfigError([Problem(origin, join(path), message)])


def parse_scalar(text: str) -> Any:
    """The value of a scalar without quotes; a number too large for a float is infinite."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    if FLOAT.match(text):
        digits = text.replace("_", "")
        number = float(digits)
        return int(digits) if _INT.match(text) and math.isfinite(number) else number
    return text


def parse_yaml(text: str, source: str, *, lines: bool = True) -> Node:
    """The tree of one YAML document; `source` names it in origins, with lines and columns or not.

    Raises ConfigError: one problem for text that is not YAML, or one for each duplicate key.
    """
    try:
        try:
            document = _Composer(_FastParser(text)).get_single_node()
        except yaml.YAMLError:  # the parser written in Python explains more
            document = _Composer(yaml.SafeLoader(text)).get_single_node()
    except yaml.YAMLError as error:
        raise ConfigError([_broken(error, source, text, lines)]) from None
    except RecursionError:
        raise ConfigError([Problem(_origin(source, None, lines), "", _TOO_DEEP)]) from None
    builder = _TreeBuilder(lambda mark: _origin(source, mark, lines))
    tree = Node(None, _origin(source, None, lines))
    if document is not None:
        tree = builder.build(document, document.start_mark, ())
    if builder.problems:
        raise ConfigError(builder.problems)
    return tree


@cache
def read_tables(file: str) -> Mapping[str, Any]:
    """The tables of a YAML file beside this one; a key may be several names with spaces between."""
    text = FilePath(__file__).with_name(file).read_text(encoding="utf-8")
    # In C: `parse_yaml`, which notes the place of each key, takes 20 times as long.
    tables: dict[str, Any] = yaml.load(text, _FastParser)
    return {
        kind: {name: value for names, value in table.items() for name in names.split()}
        if isinstance(table, dict)
        else table
        for kind, table in tables.items()
    }


def _origin(source: str, mark: Any, lines: bool) -> Origin:
    if not lines:
        return Origin(source)
    return Origin(source, 1, 1) if mark is None else Origin(source, mark.line + 1, mark.column + 1)


_FastParser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may lack libyaml


class _Composer(Composer, Resolver):
    """Resolves no scalars; `style` is None for bare ones, not for quoted or tagged ones."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the name is yaml's

    def __init__(self, parser: Any) -> None:
        Composer.__init__(self)
        Resolver.__init__(self)
        self.check_event = parser.check_event
        self.get_event, self.peek_event = parser.get_event, parser.peek_event

    def compose_scalar_node(self, anchor: Any) -> Any:
        event: Any = self.peek_event()
        node: Any = super().compose_scalar_node(anchor)
        node.style = None if event.implicit[0] else event.style or "'"
        return node


@dataclass
class _TreeBuilder:
    origin_of: Callable[[Any], Origin]
    problems: list[Problem] = field(default_factory=list)
    _open: set[int] = field(default_factory=set)
    _count: int = 0

    def build(self, node: Any, mark: Any, path: Path) -> Node:
        self._count += 1
        origin = self.origin_of(mark)
        if id(node) in self._open:
            raise ConfigError([Problem(origin, join(path), "holds an alias of itself")])
        if self._count > _MOST_NODES:
            raise ConfigError(
                [Problem(origin, join(path), f"holds more than {_MOST_NODES} values")]
            )
        if len(path) > MOST_LEVELS:
            raise ConfigError([Problem(origin, str(path[0]), _TOO_DEEP)])
        self._open.add(id(node))
        value = self._value(node, origin, path)
        self._open.discard(id(node))
        return Node(value, origin)

    def _value(self, node: Any, origin: Origin, path: Path) -> Any:
        if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.startswith(
            "tag:yaml.org,2002:python"
        ):
            self.problems.append(
                Problem(origin, join(path), f"tags such as {node.tag} are refused")
            )
            return None
        if isinstance(node, yaml.ScalarNode):
            is_bare = node.style is None or node.tag.endswith((":float", ":int"))
            return parse_scalar(node.value) if is_bare else node.value
        if isinstance(node, yaml.SequenceNode):
            return [
                self.build(item, item.start_mark, (*path, i)) for i, item in enumerate(node.value)
            ]
        return self._mapping(node, path)

    def _mapping(self, node: Any, path: Path) -> dict[str, Node]:
        mapping: dict[str, Node] = {}
        for key_node, value_node in node.value:
            origin = self.origin_of(key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(origin, join(path), "a key must be a plain word"))
                continue
            key = as_key(key_node.value) if key_node.style is None else key_node.value
            value = self.build(value_node, key_node.start_mark, (*path, key))
            if key in mapping:
                first = mapping[key].origin
                at = f"line {first.line}" if first.line else "before"
                message = f"duplicate key, given first at {at}"
                self.problems.append(Problem(origin, join((*path, key)), message))
            else:
                mapping[key] = value
        return mapping


def _broken(error: yaml.YAMLError, source: str, text: str, lines: bool) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    message = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    if mark is not None:
        bad_line = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
        if "\t" in bad_line[: mark.column + 1]:
            message = "a tab, where YAML expects spaces"
        elif "single document" in str(error):
            message = "a second document (---); one file holds one experiment"
    elif isinstance(error, ReaderError):  # A control character, say.
        above, _, beside = text[: error.position].rpartition("\n")
        row = above.count("\n") + ("\n" in text[: error.position])
        mark = yaml.Mark(source, error.position, row, len(beside), text, error.position)
    context = getattr(error, "context", None)
    context_mark = getattr(error, "context_mark", None)
    if context and context_mark is not None and mark is not None and "tab" not in message:
        message = f"{message} ({context}, line {context_mark.line + 1})"
    return Problem(_origin(source, mark, lines), "", f"not valid YAML: {message}")
