"""requirements.lock pins all dependencies of pyproject.toml, and nothing in it needs an index."""

import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from source_tree import ROOT

LINES = [
    line
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


def _locked():
    requirements = [Requirement(line) for line in LINES]
    return {
        canonicalize_name(r.name): Version(str(r.specifier).removeprefix("=="))
        for r in requirements
    }


def _required():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = [project["project"]["dependencies"], *project["dependency-groups"].values()]
    groups.extend(project["project"]["optional-dependencies"].values())
    return [Requirement(text) for group in groups for text in group]


def test_every_line_is_an_exact_pin():
    assert not [line for line in LINES if not Requirement(line).specifier]
    assert not [line for line in LINES if "==" not in line or "@" in line or "--" in line]
    assert not [name for name, version in _locked().items() if version.local]


def test_the_lock_holds_every_requirement():
    locked = _locked()
    wrong = [
        str(requirement)
        for requirement in _required()
        if canonicalize_name(requirement.name) not in locked
        or locked[canonicalize_name(requirement.name)] not in requirement.specifier
    ]
    assert not wrong, f"{wrong}: run `make lock`"


def test_no_cuda_in_the_lock():
    """The CPU build of torch needs none of it; on a machine with GPUs torch brings its own."""
    assert not [name for name in _locked() if name.startswith(("nvidia", "cuda", "triton"))]
