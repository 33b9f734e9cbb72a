"""Files and functions stay short, public things are documented, nothing is left lying about."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
from source_tree import ROOT, Module, modules, text_files

MAX_FILE_LINES = 600
MIN_FILE_LINES = 60

# Files below MIN_FILE_LINES -> why they stand alone.
SMALL_FILES = {
    **{f"cli/{name}.py": "one file a command" for name in ("export", "report", "rollout")},
    "envs/remote_env.py": "imports Ray, which the other environments do without",
    "experiment/report/numbers.py": "imports nothing, so that all reports and messages can use it",
    "sampling/sampling_loop.py": "one step of sampling, where reading begins",
}
MAX_FUNCTION_LINES = 60

# Written so that this file does not contain what it looks for.
FORBIDDEN = {
    "a task left for later": r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b",
    "a path of somebody's machine": r"(?<![\w.<>/])/(?:work|home|root|Users|opt)/\w",
    "a folder that is not in the repository": r"(?<![\w/])shared" r"/[A-Za-z]+\.md",
    "a package registry": r"py" r"pi\.org|python" r"hosted|download\.py" r"torch",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(module: Module) -> Iterator[Function]:
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def _length(function: Function) -> int:
    """Lines of a function without its docstring: documentation is never too long to keep."""
    end = function.end_lineno or function.lineno
    length = end - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        length -= (first.end_lineno or first.lineno) - first.lineno + 1
    return length


def _public_definitions(
    node: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    inherited = _documented_by_bases(node) if isinstance(node, ast.ClassDef) else set()
    for child in node.body:
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if child.name.startswith("_") or child.name in inherited or _restates_another(child):
            continue
        yield f"{prefix}{child.name}", child
        if isinstance(child, ast.ClassDef):
            yield from _public_definitions(child, f"{prefix}{child.name}.")


def _restates_another(node: Function | ast.ClassDef) -> bool:
    """Overloads and property setters carry the documentation of what they restate."""
    names = {ast.unparse(decorator) for decorator in node.decorator_list}
    return any(name.split(".")[-1] in ("overload", "setter") for name in names)


@cache
def _classes() -> dict[str, ast.ClassDef]:
    return {
        node.name: node
        for module in modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }


def _documented_by_bases(node: ast.ClassDef) -> set[str]:
    """Methods that a class of the house above this one documents, also for its subclasses."""
    documented: set[str] = set()
    for base in node.bases:
        name = ast.unparse(base).split("[")[0].split(".")[-1]
        if name in ("Module", "Sequential"):
            documented.add("forward")  # torch's own, and documented there
        if name in _classes() and _classes()[name] is not node:
            parent = _classes()[name]
            documented |= _documented_by_bases(parent)
            documented |= {
                child.name
                for child in parent.body
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
                and ast.get_docstring(child) is not None
            }
    return documented


def test_files_are_short() -> None:
    too_long = {m.where: m.num_lines for m in modules().values() if m.num_lines > MAX_FILE_LINES}
    assert not too_long


def test_a_small_file_has_a_reason() -> None:
    small = {
        module.where
        for module in modules().values()
        if module.num_lines < MIN_FILE_LINES and not module.path.name.startswith("__")
    }
    assert small == SMALL_FILES.keys()


def test_functions_are_short() -> None:
    too_long = {
        f"{module.where}:{function.lineno} {function.name}": _length(function)
        for module in modules().values()
        for function in _functions(module)
        if _length(function) > MAX_FUNCTION_LINES
    }
    assert not too_long


def test_public_things_have_docstrings() -> None:
    missing = [
        f"{module.where}: {name}"
        for module in modules().values()
        for name, node in [(module.name, module.tree), *_public_definitions(module.tree)]
        if ast.get_docstring(node) is None
    ]
    assert not missing, "\n".join(missing)


def test_no_file_is_called_utils() -> None:
    catch_alls = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
    assert not [module.where for module in modules().values() if module.path.name in catch_alls]


@pytest.mark.parametrize("what", sorted(FORBIDDEN))
def test_nothing_is_left_lying_about(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in text_files()
        if path.name != "LICENSE"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_documents_named_in_the_sources_exist() -> None:
    existing = {path.name for path in text_files()}
    missing = [
        f"{path.relative_to(ROOT)} names {name}"
        for path in text_files()
        if path.suffix in (".py", ".md", ".yaml", ".toml")
        for name in re.findall(r"\b[\w-]+\.md\b", path.read_text(encoding="utf-8"))
        if name not in existing
    ]
    assert not missing, "\n".join(missing)
