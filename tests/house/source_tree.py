"""What the house tests share: the tracked text of the project and its modules as syntax trees."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rlrun"

# From the top down; a room imports from the rooms below it (docs/concepts.md draws the same list).
LADDER = (
    "cli",
    "experiment",
    "algorithms",
    "learning",
    "actors",
    "sampling",
    "replay",
    "envs",
    "connectors",
    "policies",
    "checkpoint",
    "data",
)
LEAF = "config"

_TOP_LEVEL = ("rlrun", "tests", "configs", "benchmarks", "docs", ".ci")
_SUFFIXES = {".py", ".md", ".yaml", ".toml", ".lock", ".sh", ".json", ""}


_IMPORT_PATH = re.compile(r"(rlrun(?:\.\w+){2,})(?::\w+)?")

When = Literal["at import", "in a function", "for types", "in a string"]


@dataclass(frozen=True)
class Import:
    """One imported name: `from module import name` (name is None for a plain `import module`)."""

    module: str
    name: str | None
    line: int
    when: When


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str  # "rlrun.data.columns"
    path: Path
    tree: ast.Module
    num_lines: int

    @property
    def room(self) -> str:
        """The sub-package it lives in; "" for rlrun/__init__.py and rlrun/__main__.py."""
        parts = self.path.relative_to(PACKAGE).parts
        return parts[0] if len(parts) > 1 else ""

    @property
    def where(self) -> str:
        """The path as a reader writes it: "data/columns.py"."""
        return self.path.relative_to(PACKAGE).as_posix()

    @cached_property
    def imports(self) -> list[Import]:
        """Every import of the file: at its top, inside functions, for types alone, by a string."""
        found = list(_imports(self.tree, "at import"))
        if self.room not in ("", LEAF):  # which reach code by import path while the program runs
            found += _named_in_strings(self.tree)
        return found


def _imports(node: ast.AST, when: When) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, None, child.lineno, when)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: relative import"
            for alias in child.names:
                yield Import(child.module or "", alias.name, child.lineno, when)
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _imports(child, "in a function")
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _imports(child, "for types")
        else:
            yield from _imports(child, when)


def _named_in_strings(tree: ast.Module) -> Iterator[Import]:
    """Modules of rlrun that a text names as a whole: "rlrun.room.module" or with ":name" behind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = _IMPORT_PATH.fullmatch(node.value)
            if named:
                yield Import(named[1], None, node.lineno, "in a string")


@cache
def modules() -> dict[str, Module]:
    """Every module of rlrun by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found[name] = Module(name, path, ast.parse(text, str(path)), text.count("\n"))
    return found


def target_module(imported: Import) -> str | None:
    """The module of rlrun that an import reaches, or None for another library's."""
    if imported.module.split(".")[0] != "rlrun":
        return None
    as_module = f"{imported.module}.{imported.name}"
    return as_module if imported.name and as_module in modules() else imported.module


def text_files() -> list[Path]:
    """Every text file that belongs to the project: sources, tests, documents, settings."""
    files = [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".git")]
    for folder in _TOP_LEVEL:
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    return sorted(
        path for path in files if path.suffix in _SUFFIXES and "__pycache__" not in path.parts
    )
