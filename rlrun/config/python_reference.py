"""docs/python.md: everything that ``import rlrun`` offers, from signatures and docstrings.

Owns: which names stand under which heading, and the form of an entry. Must not know: what any of
them does; a test holds that the page is up to date and that no public name is missing.

    python -m rlrun.config.python_reference
"""

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

HEADINGS: dict[str, tuple[str, ...]] = {
    "Runs": ("experiment", "config"),
    "Algorithms": ("algorithms",),
    "Policies and networks": ("policies",),
    "Environments": ("envs",),
    "Sampling": ("sampling", "actors", "connectors"),
    "Learning": ("learning", "replay"),
    "Batches": ("data",),
}
"""Heading -> the rooms whose public names stand under it."""

_STARS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
_INTRODUCTION = """\
# Python

Every name of `import rlrun`; each is imported on first use. Generated from docstrings
by `python -m rlrun.config.python_reference`.
"""


def python_reference() -> str:
    """The page as markdown."""
    package = import_module("rlrun")
    names = {name: getattr(package, name) for name in package.__all__}
    parts = [_INTRODUCTION]
    for heading, rooms in HEADINGS.items():
        parts.append(f"## {heading}\n")
        for name in sorted(names, key=str.lower):
            if names[name].__module__.split(".")[1] in rooms:
                parts += _entry(name, names[name])
    return "\n".join(parts)


def _entry(name: str, thing: Any) -> Iterator[str]:
    """Signature, documentation, and the methods of a class with a line each."""
    yield f"### {name}\n"
    yield f"`{name}{_parameters(thing)}` of `{thing.__module__}`\n"
    yield f"```text\n{inspect.getdoc(thing) or ''}\n```\n"
    if not inspect.isclass(thing):
        return
    for method, member in vars(thing).items():
        if not method.startswith("_") and inspect.isfunction(member):
            summary = (inspect.getdoc(getattr(thing, method)) or "").partition("\n")[0]
            yield f"- `{method}{_parameters(member)}`: {summary}"
    yield ""


def _parameters(thing: Any) -> str:
    """The parameters' names, as in a call."""
    names = []
    for parameter in inspect.signature(thing).parameters.values():
        # Ray adds a private one to methods of classes that became actors in this process.
        if parameter.name == "self" or parameter.name.startswith("_"):
            continue
        star = _STARS.get(parameter.kind, "")
        optional = "=..." if parameter.default is not parameter.empty else ""
        names.append(f"{star}{parameter.name}{optional}")
    return f"({', '.join(names)})"


if __name__ == "__main__":
    Path("docs/python.md").write_text(python_reference(), encoding="utf-8")
