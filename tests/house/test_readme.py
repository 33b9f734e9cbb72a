"""What README.md shows can be done: its commands exist, its file is valid, its code runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import ROOT

from rlrun import load_experiment

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert not [link for link in local if not (document.parent / link).exists()]


def test_yaml_is_a_valid_experiment(tmp_path: Path) -> None:
    experiments = [block for block in _blocks("yaml") if "algorithm:" in block]
    assert experiments
    for number, text in enumerate(experiments):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        load_experiment(path)


def test_make_targets_exist() -> None:
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", "\n".join([*_blocks("sh"), README])))
    assert named
    assert named <= MAKE_TARGETS


def test_commands_exist() -> None:
    shown = "\n".join(_blocks("sh"))
    commands = set(re.findall(r"^(?:\.venv/bin/)?rlrun ([a-z]+)", shown, re.MULTILINE))
    assert commands
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "rlrun", command, "--help"],
            cwd=ROOT,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, command


def test_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = _blocks("python")
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_reached_numbers_are_those_of_the_results_page() -> None:
    rows = re.findall(r"^\| [a-z0-9]+-[a-z-]+ \|.*$", README, re.MULTILINE)
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines()
    assert rows
    assert not [row for row in rows if row not in page]
