"""The loop that docs/concepts.md shows runs as it stands there."""

import re

from source_tree import ROOT

PAGE = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")


BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def run(word):
    """Execute the page's only block with this word; returns its names."""
    (code,) = [block for block in BLOCKS if word in block]
    names = {"__name__": "page"}
    exec(compile(code, "docs/concepts.md", "exec"), names)
    return names


def test_what_became_of_calling_an_optimizers_step_runs():
    optimizer = run("optimizer.training_step()")["optimizer"]
    assert (optimizer.env_steps, optimizer.policies.weights_version) == (3 * 500, 3)


def test_the_loop_over_an_asynchronous_sampler_runs_and_learns(capsys):
    names = run("AsynchronousSampler(")
    assert names["sampler"].weights_version == 3
    assert names["learner"].get_state()["optimizer"]["num_steps"] == 3
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in said if line.startswith("learned")] == ["1", "2", "3"]


def test_the_loop_by_hand_runs_and_its_weights_arrive():
    names = run("CustomPolicy")
    group, policy = names["group"], names["policy"]
    try:
        assert policy.w == 1.0 + 3 * 2 * 200
        weights = group.foreach_env_runner(lambda runner: runner.policy.w)
        assert weights == [policy.w, policy.w]
    finally:
        group.stop()
