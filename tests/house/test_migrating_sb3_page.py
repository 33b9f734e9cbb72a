"""docs/migrating-from-sb3.md: its files are valid, its table is what answers other names."""

import re
import sys

import pytest
from pages import blocks, page

from rlrun.cli.main import main
from rlrun.config.checks import RESULT_KEYS
from rlrun.config.loader import load_experiment
from rlrun.config.problems import ConfigError
from rlrun.config.registry import ALGORITHMS, algorithm_class
from rlrun.config.retired import table
from rlrun.config.schema import sections

OTHER_LIBRARIES = table("other_libraries")
PAGE = page("migrating-from-sb3.md")
TABLE = PAGE.partition("## Keys\n")[2].partition("\n## ")[0]
ADDRESSES = {f"stop.{key}" for key in RESULT_KEYS} | {
    f"{name}.{field}"
    for algorithm in ALGORITHMS
    for name, schema in sections(algorithm_class(algorithm).Training).items()
    for field in schema.model_fields
}


@pytest.mark.parametrize("file", blocks(PAGE, "yaml"), ids=["Stable-Baselines3", "CleanRL"])
def test_its_files_pass_the_check(file, tmp_path, monkeypatch, capsys):
    (tmp_path / "ppo.yaml").write_text(file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", blocks(PAGE, "sh")[0].splitlines()[0].split())
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, capsys.readouterr().err


def test_its_table_is_the_one_of_the_code():
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", TABLE, re.MULTILINE)
    listed = {
        key: f"write {text.replace('`', '')}"
        for keys, text in rows
        for key in re.findall(r"`(\w+)`", keys)
    }
    assert listed == OTHER_LIBRARIES


@pytest.mark.parametrize("section", ["", "training"])
@pytest.mark.parametrize("name", OTHER_LIBRARIES)
def test_a_name_of_another_library_is_answered_with_an_address_that_exists(name, section, tmp_path):
    file = tmp_path / "old.yaml"
    file.write_text(
        f"algorithm: PG\nenv: CartPole-v1\n{section + ': {' if section else ''}{name}: 1"
        f"{'}' if section else ''}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_experiment(file)
    (problem,) = caught.value.problems
    assert (problem.origin.line, problem.key) == (3, f"{section}.{name}".lstrip("."))
    assert problem.message == OTHER_LIBRARIES[name]
    named = re.findall(r"\b[a-z_]+\.[a-z_]+\b", problem.message)
    assert named or "section model" in problem.message
    assert set(named) <= ADDRESSES


def test_each_name_has_one_answer():
    others = {*table("successors"), *table("no_effect"), *table("rules")}
    assert not OTHER_LIBRARIES.keys() & others
