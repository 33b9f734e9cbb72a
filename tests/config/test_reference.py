"""docs/config.md is up to date; fields are documented; successors of retired names exist."""

from pathlib import Path

import pytest

from rlrun.config import retired
from rlrun.config.loader import load_experiment
from rlrun.config.reference import reference, starter
from rlrun.config.registry import ALGORITHMS, algorithm_class
from rlrun.config.schema import sections
from rlrun.config.yaml_tree import parse_yaml, read_tables

DOCUMENT = Path(__file__).parents[2] / "docs" / "config.md"
SECTIONS = [
    (algorithm, name, schema)
    for algorithm in ALGORITHMS
    for name, schema in sections(algorithm_class(algorithm).Training).items()
]


def test_the_document_is_up_to_date():
    hint = "run: python -m rlrun.config.reference"
    assert DOCUMENT.read_text(encoding="utf-8") == reference(), hint


@pytest.mark.parametrize(("algorithm", "name", "schema"), SECTIONS)
def test_every_field_is_documented(algorithm, name, schema):
    undocumented = [key for key, field in schema.model_fields.items() if not field.description]
    assert not undocumented
    assert schema.__doc__


def test_successors_of_retired_names_exist():
    addresses = {
        f"{name}.{field}".lstrip(".")
        for _, name, schema in SECTIONS
        for field in schema.model_fields
    }
    for old, successor in retired.table("successors").items():
        assert successor in addresses, old
    names = {address.rpartition(".")[2] for address in addresses}
    assert not names & {*retired.table("successors"), *retired.table("rules")}


@pytest.mark.parametrize("file", ["retired.yaml", "rllib_tables.yaml", "zoo_tables.yaml"])
def test_each_name_is_in_a_table_once(file):
    path = Path(retired.__file__).with_name(file)
    read = parse_yaml(path.read_text().replace("<<:", "below:"), file).plain()  # raises otherwise
    for name, table in read_tables(file).items():
        if name != "defaults" and isinstance(table, dict):
            assert list(table) == " ".join(read[name]).split()
            assert list(table.values()) == [v for k, v in read[name].items() for _ in k.split()]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_starter_file_is_valid_and_says_the_defaults(algorithm, env, tmp_path):
    file = tmp_path / "starter.yaml"
    file.write_text(starter(algorithm, env))
    experiment = load_experiment(file)
    assert experiment.env.use == env
    assert experiment.training == algorithm_class(algorithm).Training()
    text = file.read_text()
    for name, schema in sections(algorithm_class(algorithm).Training).items():
        if name not in ("", "env"):
            assert all(f" {key}: " in text for key in schema.model_fields if key != "kwargs")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_starter_file_is_valid_with_every_key_switched_on(algorithm, tmp_path):
    lines = [
        line.replace("# ", "", 1) if line.startswith("  # ") else line
        for line in starter(algorithm, "CartPole-v1").splitlines()
    ]
    file = tmp_path / "all.yaml"
    file.write_text("\n".join(lines))
    assert load_experiment(file).env_runners.sample_timeout_s == 60.0
