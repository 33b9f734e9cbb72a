"""docs/migrating-from-rllib.md: its example is translated, its tables say what is done."""

import re

import pytest
from pages import blocks, page

from rlrun.config import retired
from rlrun.config.loader import load_experiment
from rlrun.config.rllib_rules import tables

PAGE = page("migrating-from-rllib.md")


def rows(heading):
    """The cells of each row of the table below this heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def keys(cell):
    return re.findall(r"`([^`]+)`", cell)


def test_the_example_is_translated(tmp_path):
    file = tmp_path / "cartpole.yaml"
    file.write_text(blocks(PAGE, "yaml")[0])
    experiment = load_experiment(file)
    assert experiment.name == "cartpole-dqn"
    assert experiment.stop == {"episode_return_mean": 150, "env_steps": 50_000}
    assert experiment.env_runners.rollout_fragment_length == 3
    assert experiment.training.training_intensity == pytest.approx(32 / 6)


@pytest.mark.parametrize("row", rows("Keys that go to another name"), ids=lambda row: row[0])
def test_keys_go_where_the_page_says(row):
    (address,) = keys(row[1])
    for key in keys(row[0]):
        assert tables()["addresses"].get(key, retired.table("successors").get(key)) == address


def test_keys_without_effect_are_those():
    for cells in rows("Without effect"):
        for key in keys(cells[0]):
            assert retired.without_effect(key) or key in tables()["without_counterpart"]


def test_refused_keys_have_a_reason():
    for cells in rows("Refused"):
        for key in keys(cells[0]):
            name, _, value = key.partition(": ")
            assert name in tables()["only"] or value or name in tables()["not_here"]
