"""docs/algorithms.md: its settings, files and algorithms are there, and no algorithm is missing."""

import re

from pages import page

from rlrun.config.registry import ALGORITHMS, configs_folder

TEXT = page("algorithms.md")


def test_each_algorithm_has_a_section():
    headings = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert set(ALGORITHMS) <= {name for heading in headings for name in heading.split(" and ")}


def test_its_settings_are_described():
    sections, described = (
        {"training", "model", "replay", "exploration", "env_runners"},
        page("config.md"),
    )
    named = re.findall(r"`([a-z_]+)\.([a-z_]+)", TEXT)
    assert len(named) > 12
    for section, key in named:
        assert section in sections
        assert f"| `{key}` |" in described, key


def test_its_files_are_there():
    names = re.findall(r"`([a-z0-9]+/[a-z_]+)`", TEXT)
    assert len(names) > 15
    assert [name for name in names if not _file(name).is_file()] == []


def _file(name):
    return configs_folder() / f"{name.replace('/', '_')}.yaml"
