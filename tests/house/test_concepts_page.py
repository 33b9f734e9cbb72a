"""docs/concepts.md: its loops run, and its story of an iteration is short and up to date."""

import re
import sys
from collections import Counter
from pathlib import Path

from pages import blocks, execute, page
from source_tree import LADDER, LEAF, PACKAGE

from rlrun import PPOConfig

PAGE = page("concepts.md")
MAX_FILES = 14
MAX_LINES = 4000
STORY = re.findall(r"^\d+\. `([a-z_/]+\.py)`", PAGE, re.MULTILINE)


def run(word):
    """The names that the page's only block with this word defines."""
    (code,) = [block for block in blocks(PAGE, "python") if word in block]
    names = {"__name__": "page"}
    execute(code, names, "docs/concepts.md")
    return names


def test_the_successor_of_an_optimizers_step_runs(shared_actors):
    optimizer = run("optimizer.training_step()")["optimizer"]
    assert (optimizer.env_steps, optimizer.policies.weights_version) == (3 * 500, 3)


def test_the_loop_over_an_asynchronous_sampler_runs_and_learns(shared_actors, capsys):
    names = run("AsynchronousSampler(")
    assert names["sampler"].weights_version == 3
    assert names["learner"].get_state()["optimizer"]["num_steps"] == 3
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in printed if line.startswith("learned")] == ["1", "2", "3"]


def test_the_loop_by_hand_runs_and_its_weights_arrive(shared_actors):
    names = run("CustomPolicy")
    group, policy = names["group"], names["policy"]
    try:
        assert policy.w == 1.0 + 3 * 2 * 200
        weights = group.foreach_env_runner(lambda runner: runner.policy.w)
        assert weights == [policy.w, policy.w]
    finally:
        group.stop()


def test_the_story_is_short():
    assert STORY, "the numbered list is missing"
    assert len(STORY) <= MAX_FILES
    lines = {name: (PACKAGE / name).read_text(encoding="utf-8").count("\n") for name in STORY}
    assert sum(lines.values()) <= MAX_LINES, lines


def test_an_iteration_enters_every_file_of_the_story_and_no_busy_one_is_left_out():
    calls = Counter()

    def count(frame, event, _argument):
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            calls[Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix()] += 1

    config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=8)
    algorithm = config.training(train_batch_size=1024, minibatch_size=256, num_epochs=4).build()
    algorithm.train()
    sys.setprofile(count)
    try:
        algorithm.train()
    finally:
        sys.setprofile(None)
        algorithm.stop()
    assert not [name for name in STORY if not calls[name]]
    busiest = [name for name, _ in calls.most_common(10)]
    assert not [
        name for name in busiest if f"`{name}`" not in PAGE.split("## One PPO iteration")[1]
    ]


def test_files_named_on_the_page_exist():
    named = set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", PAGE))
    assert not {name for name in named if not (PACKAGE / name).exists()}


def test_the_rooms_are_listed_in_the_order_of_the_ladder():
    table = re.findall(r"^\| `([a-z]+)` \|", PAGE, re.MULTILINE)
    assert table == [*LADDER, LEAF]
