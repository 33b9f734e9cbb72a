"""README.md: its commands exist, its file is valid, its code runs, its links lead somewhere."""

import re
import tomllib

import pytest
import yaml
from pages import blocks, execute, page
from source_tree import ROOT

from rlrun import load_experiment
from rlrun.cli.main import COMMANDS

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert not [link for link in local if not (document.parent / link).exists()]


def test_yaml_is_a_valid_experiment(tmp_path):
    experiments = [block for block in blocks(README, "yaml") if "algorithm:" in block]
    assert experiments
    for number, text in enumerate(experiments):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        load_experiment(path)


def test_the_citation_says_what_the_package_says():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert (cited["title"], cited["abstract"]) == (project["name"], project["description"])
    assert cited["license"] == project["license"]


def test_make_targets_exist():
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", "\n".join([*blocks(README, "sh"), README])))
    assert named
    assert named <= MAKE_TARGETS


def test_commands_exist():
    shown = "\n".join(blocks(README, "sh"))
    commands = set(re.findall(r"^(?:\.venv/bin/)?rlrun ([a-z]+)", shown, re.MULTILINE))
    assert commands
    assert commands <= set(COMMANDS)


def test_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = blocks(README, "python")
    assert snippets
    for snippet in snippets:
        execute(snippet, {}, "README.md")


@pytest.mark.parametrize("text", [README, page("algorithms.md")], ids=["README", "algorithms"])
def test_reached_numbers_equal_the_results_page(text):
    rows = re.findall(r"^\| [a-z0-9]+-[a-z0-9-]+ \|.*$", text, re.MULTILINE)
    assert len(rows) > 5
    assert not [row for row in rows if row not in page("results.md").splitlines()]
