"""docs/concepts.md: its loops run, and its story of an iteration is short and up to date."""

import re

from pages import blocks, execute, page
from source_tree import LADDER, LEAF, PACKAGE

PAGE = page("concepts.md")
MAX_FILES = 10
MAX_LINES = 3300


def run(word):
    """The names that the page's only block with this word defines."""
    (code,) = [block for block in blocks(PAGE, "python") if word in block]
    names = {"__name__": "page"}
    execute(code, names, "docs/concepts.md")
    return names


def test_the_successor_of_an_optimizers_step_runs():
    optimizer = run("optimizer.training_step()")["optimizer"]
    assert (optimizer.env_steps, optimizer.policies.weights_version) == (3 * 500, 3)


def test_the_loop_over_an_asynchronous_sampler_runs_and_learns(capsys):
    names = run("AsynchronousSampler(")
    assert names["sampler"].weights_version == 3
    assert names["learner"].get_state()["optimizer"]["num_steps"] == 3
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in printed if line.startswith("learned")] == ["1", "2", "3"]


def test_the_loop_by_hand_runs_and_its_weights_arrive():
    names = run("CustomPolicy")
    group, policy = names["group"], names["policy"]
    try:
        assert policy.w == 1.0 + 3 * 2 * 200
        weights = group.foreach_env_runner(lambda runner: runner.policy.w)
        assert weights == [policy.w, policy.w]
    finally:
        group.stop()


def test_the_story_is_short_and_its_files_exist():
    files = re.findall(r"^\d+\. `([a-z_/]+\.py)`", PAGE, re.MULTILINE)
    assert files, "the numbered list is missing"
    assert len(files) <= MAX_FILES
    lines = {name: (PACKAGE / name).read_text(encoding="utf-8").count("\n") for name in files}
    assert sum(lines.values()) <= MAX_LINES, lines


def test_files_named_on_the_page_exist():
    named = set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", PAGE))
    assert not {name for name in named if not (PACKAGE / name).exists()}


def test_the_rooms_are_listed_in_the_order_of_the_ladder():
    table = re.findall(r"^\| `([a-z]+)` \|", PAGE, re.MULTILINE)
    assert table == [*LADDER, LEAF]
