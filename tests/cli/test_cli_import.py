"""`rlrun import`: files of RLlib in rlrun's form."""

from pathlib import Path

import pytest

from rlrun.config.loader import load_experiment

OLD = """\
cartpole:
  env: CartPole-v1
  run: DQN
  stop: {episode_reward_mean: 150}
  config: {framework: torch, lr: 1e-3, n_step: 3}
"""
TWO = f"{OLD}pendulum: {{env: Pendulum-v1, run: SAC}}\n"


@pytest.fixture
def old(rlrun):
    Path("old.yaml").write_text(OLD)
    Path("two.yaml").write_text(TWO)
    return rlrun


def test_the_written_file_is_the_experiment_that_train_reads(old):
    code, out, err = old("import", "old.yaml")
    assert code == 0
    Path("new.yaml").write_text(out)
    assert load_experiment("new.yaml") == load_experiment("old.yaml")
    assert "\n  lr: 0.001\n" in out
    assert "# default of RLlib 2.4" in out
    assert err.splitlines() == [
        "no effect: old.yaml:5:12: cartpole.config.framework: rlrun trains with PyTorch only",
        "cartpole: 5 settings translated, 17 defaults of RLlib filled in, 1 without effect",
    ]


def test_several_experiments_become_files_of_a_folder(old):
    code, out, _ = old("import", "two.yaml", "-o", "new")
    assert (code, out) == (0, "new/cartpole.yaml\nnew/pendulum.yaml\n")
    assert load_experiment("new/pendulum.yaml").algorithm == "SAC"


def test_one_of_several_is_chosen_by_name(old):
    code, _, _ = old("import", "two.yaml", "name=pendulum", "-o", "one.yaml")
    assert code == 0
    assert load_experiment("one.yaml").name == "pendulum"


def test_settings_of_the_command_line_are_written(old):
    _, out, _ = old("import", "old.yaml", "training.lr=0.5")
    assert "\n  lr: 0.5\n" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["two.yaml"],
            "two.yaml has cartpole, pendulum; write all with -o DIR, or one with",
        ),
        (["two.yaml", "-o", "old.yaml"], "old.yaml cannot be written"),
        (["old.yaml", "-o", "two.yaml"], "two.yaml exists already; remove it"),
        (["old.yaml", "-o", "new.yaml", "training.lr=x"], "training.lr: expected a number"),
        (["old.yaml", "new.yaml"], "expected one FILE.yaml, got"),
        (["a2c.yml", "CartPole-v1"], "KEY=VALUE, such as name=CartPole-v1"),
        (["old.yaml", "training.lr"], "KEY=VALUE, such as training.lr=VALUE"),
        (["none.yaml"], "none.yaml: there is no such file"),
        ([], "name a file of RLlib"),
    ],
)
def test_wrong_input_leaves_nothing_behind(old, refused, words, says):
    refused(["import", *words], says)
    assert sorted(path.name for path in Path().iterdir()) == ["old.yaml", "two.yaml"]


def test_a_file_in_rlruns_own_form_is_refused(old, refused):
    Path("new.yaml").write_text("algorithm: PPO\nenv: CartPole-v1\n")
    refused(["import", "new.yaml"], "new.yaml:1:1: expected a file of RLlib,")


def test_check_and_train_read_an_old_file(old):
    code, out, err = old("check", "old.yaml", "two.yaml", "name=cartpole")
    assert code == 0
    assert out.splitlines()[0] == "old.yaml: ok, DQN on CartPole-v1, replay of at least 3.6 MB"
    assert "translated from RLlib's form" in err
    code, _, _ = old(
        "train", "old.yaml", "stop.training_iteration=1", "--quiet", "--run-dir", "run"
    )
    assert code == 0
    assert load_experiment("run/config.yaml").training.n_step == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "--run", "PPO"], "there is no option --run; write --algorithm NAME"),
        (["train", "--config={}"], "there is no option --config; write each setting as KEY=VALUE"),
        (["rollout", "run", "--out", "x"], "there is no option --out; write --save FILE"),
    ],
)
def test_options_of_rllib_say_what_to_write_now(refused, words, says):
    refused(words, says)
