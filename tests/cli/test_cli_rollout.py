"""``rlrun rollout``: the table, the JSON object and the refusals."""

import json
import shutil
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest

from rlrun.experiment.run import run_experiment

FILE = """
algorithm: PPO
env: CartPole-v1
seed: 5
stop: {training_iteration: 1}
model: {hidden: [8]}
training: {train_batch_size: 64, minibatch_size: 64, num_epochs: 1}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("rollout")
    (path / "ppo.yaml").write_text(FILE)
    run_experiment(path / "ppo.yaml", run_dir=path / "run", console="quiet")
    return path / "run"


@pytest.fixture
def rollout(rlrun):
    """Call ``rlrun rollout WORDS``; returns the exit code, stdout and stderr."""
    return partial(rlrun, "rollout")


def test_a_table(run, rollout):
    code, out, _ = rollout(run, "--episodes", 3, "--seed", 1)
    assert code == 0
    lines = out.splitlines()
    assert "checkpoints/000001, deterministic actions, seed 1" in lines[0]
    assert [line.split()[0] for line in lines[1:5]] == ["episode", "1", "2", "3"]
    assert lines[-1].startswith("return ")
    assert lines[-1].endswith("over 3 episodes")


class Upright(gymnasium.Wrapper):
    """Ends after five steps, which succeed if the pole leans to the right."""

    steps = 0

    def step(self, action):
        self.steps += 1
        observation, reward, terminated, truncated, _ = self.env.step(action)
        info = {"is_success": bool(observation[2] > 0), "angle": observation[2]}
        return observation, reward, terminated, truncated or self.steps % 5 == 0, info


def test_success_and_metrics_of_each_episode_are_shown(run, rollout):
    words = [run, f"env_runners.env_wrappers=['{__name__}:Upright']", "report.info_keys=[angle]"]
    words += ["--episodes", 4, "--seed", 1, "evaluation.num_envs=1"]
    code, out, _ = rollout(*words, "--json")
    assert code == 0
    found = json.loads(out)
    metrics = [each["custom_metrics"] for each in found["per_episode"]]
    assert [each["is_success"] for each in metrics] == [each["angle"] > 0 for each in metrics]
    assert found["success_rate"] == np.mean([each["is_success"] for each in metrics])
    lines = rollout(*words)[1].splitlines()
    assert lines[1].split() == ["episode", "return", "length", "angle", "is_success"]
    assert [float(line.split()[-1]) for line in lines[2:6]] == [m["is_success"] for m in metrics]
    assert lines[-1] == f"success rate {found['success_rate']:.3g}"


def test_an_evaluation_of_so_many_env_steps_is_repeated(rollout, tmp_path, capsys):
    (tmp_path / "ppo.yaml").write_text(FILE)
    changes = ["evaluation={interval: 1, env_steps: 500, num_envs: 3}"]
    run_experiment(tmp_path / "ppo.yaml", changes, run_dir=tmp_path / "run", console="quiet")
    evaluated = json.loads((tmp_path / "run/metrics.jsonl").read_text())["evaluation"]
    capsys.readouterr()
    found = json.loads(rollout(tmp_path / "run", "--json")[1])
    assert len(found["per_episode"]) == evaluated["episodes"] > 2
    assert found["episode_return_mean"] == evaluated["episode_return_mean"]
    saved = tmp_path / "t.npz"
    assert rollout(tmp_path / "run", "--save", saved)[0] == 0
    assert len(np.load(saved)["reward"]) == sum(e["episode_len"] for e in found["per_episode"])
    two = json.loads(rollout(tmp_path / "run", "--json", "--episodes", 2)[1])
    assert len(two["per_episode"]) == 2
    first = found["per_episode"][0]["episode_len"]
    for steps, episodes in ((1, 0), (first, 1), (first + 1, 1)):
        _, out, _ = rollout(tmp_path / "run", "--json", "--steps", steps, "--save", saved)
        assert (len(json.loads(out)["per_episode"]), len(np.load(saved)["reward"])) == (
            episodes,
            steps,
        )


def test_returns_of_agents_are_shown_by_policy(rollout, tmp_path):
    (tmp_path / "ppo.yaml").write_text(FILE)
    changes = ["env=TakeTurns", "multi_agent.policies=[one, two]"]
    changes += ["multi_agent.agents={player_0: one, player_1: two}", "training.num_epochs=1"]
    run_experiment(tmp_path / "ppo.yaml", changes, run_dir=tmp_path / "run", console="quiet")
    _, out, _ = rollout(tmp_path / "run", "--episodes", 3)
    of_all, by_policy = out.splitlines()[-2:]
    assert of_all.startswith("return 0.00 ")
    assert by_policy.startswith("return of an agent, by policy: one ")
    _, out, _ = rollout(tmp_path / "run", "--episodes", 3, "--json")
    found = json.loads(out)
    means = found["policy_return_mean"]
    of_one = [each["agents"]["player_0"] for each in found["per_episode"]]
    assert {each["policy"] for each in of_one} == {"one"}
    assert np.mean([each["return"] for each in of_one]) == means["one"]
    assert by_policy.endswith(f"one {means['one']:.2f}, two {means['two']:.2f}")


def test_one_json_object(run, rollout, tmp_path):
    words = [run / "checkpoints/latest", "--episodes", 2, "--explore", "--json"]
    code, out, _ = rollout(*words, "--save", tmp_path / "t.npz")
    assert code == 0
    found = json.loads(out)
    assert len(found["per_episode"]) == 2
    assert found["explore"] is True
    assert found["checkpoint"].endswith("000001")
    assert (tmp_path / "t.npz").exists()


def test_settings_of_the_run_can_be_overridden(run, rollout):
    words = [run, "env.max_episode_steps=5", "--episodes", 2, "--json"]
    code, out, _ = rollout(*words)
    assert code == 0
    assert [each["episode_len"] for each in json.loads(out)["per_episode"]] == [5, 5]
    code, _, err = rollout(run, "env.max_episode_step=5")
    assert code == 2
    assert "did you mean max_episode_steps?" in err
    assert "but in the checkpoint Box(" in rollout(run, "env=Acrobot-v1")[2]
    assert "expected KEY=VALUE" in rollout(run, "videos")[2]


@pytest.mark.parametrize("option", [["--render"], ["--video", "videos"]])
def test_a_package_that_rendering_needs_and_that_is_missing_is_named(
    run, rollout, option, monkeypatch
):
    pytest.importorskip("moviepy")
    monkeypatch.setitem(sys.modules, "pygame", None)
    code, _, err = rollout(run, "--episodes", 1, *option)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"{option[0]}: pygame is not installed, run `pip install")


class Unseen(gymnasium.Wrapper):
    """An environment that defines no `render` of its own."""

    render = gymnasium.Env.render


@pytest.mark.parametrize("option", [["--render"], ["--video", "videos"]])
def test_an_environment_without_render_is_refused(run, rollout, option, monkeypatch):
    pytest.importorskip("moviepy")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    wrapped = f"env_runners.env_wrappers=['{__name__}:Unseen']"
    code, _, err = rollout(run, wrapped, "--episodes", 1, *option)
    assert (code, err) == (2, f"{option[0]}: the environment has no method render()\n")


def test_a_step_limit_can_end_a_rollout_without_episodes(run, rollout):
    code, out, _ = rollout(run, "--steps", 2)
    assert code == 0
    assert "no episode ended within the step limit" in out


def test_transitions_are_saved_as_npz_only(rollout):
    code, _, error = rollout("run", "--save", "t.parquet")
    assert code == 2
    assert "--save writes npz files: name it t.npz" in " ".join(error.split())


def test_wrong_arguments_are_exit_2(run, rollout, tmp_path):
    assert rollout(tmp_path)[0] == 2
    assert "no such run folder" in rollout(tmp_path / "none")[2]
    assert f"no such run folder - did you mean {run}?" in rollout(run.with_name("rum"))[2]
    assert rollout(run, "--render", "--video", tmp_path)[0] == 2
    assert rollout(run, "--episodes", 0)[0] == 2


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("weights.safetensors", lambda data: data[:-1], "weights.safetensors has"),
        ("manifest.json", lambda data: data.replace(b'"version": 4', b'"version": 3'),
         "written by an older version of rlrun, in checkpoint format 3"),
    ],
)  # fmt: skip
def test_an_unreadable_checkpoint_is_exit_2_with_one_line(
    run, rollout, tmp_path, file, change, says
):
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    path = tmp_path / "run/checkpoints/000001" / file
    path.write_bytes(change(path.read_bytes()))
    code, _, err = rollout(tmp_path / "run")
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1
