"""The environment that a config names: found, installed, and given the right arguments."""

import importlib.util

import pytest

from rlrun.config import registry
from rlrun.config.env_checks import check_environment
from rlrun.config.registry import import_object
from rlrun.config.schema import EnvRunnersConfig, EnvSpec, ExperimentConfig, TrainingConfig

needs_envpool = pytest.mark.skipif(
    importlib.util.find_spec("envpool") is None, reason="the extra envpool is not installed"
)


def problems(use, mode="auto", policies=(), **kwargs):
    """Address and message of each."""
    experiment = ExperimentConfig(
        algorithm="PPO",
        env=EnvSpec(use=use, kwargs=kwargs),
        env_runners=EnvRunnersConfig(gym_env_vectorize_mode=mode),
        training=TrainingConfig(),
        multi_agent={"policies": list(policies)},
    )
    found = check_environment(experiment)
    return [(".".join(map(str, finding.path)), finding.message) for finding in found]


@pytest.fixture
def registered():
    registry.ENVS["Labyrinth"] = import_object("fake_algorithm:Maze")
    yield
    del registry.ENVS["Labyrinth"]


@pytest.mark.parametrize(
    ("use", "kwargs"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"sutton_barto_reward": True, "max_episode_steps": 50}),
        ("Pendulum-v1", {"g": 9.8}),
        ("FrozenLake-v1", {"is_slippery": False}),
        ("gymnasium.envs.classic_control:CartPole-v1", {}),
        ("fake_algorithm:Maze", {"size": 3}),
        ("fake_algorithm:Maze", {"size": 3, "walls": 1.0}),
        ("fake_algorithm:classical", {"anything": 3}),
        ("StatelessCartPole", {"max_episode_steps": 50}),
        ("rlrun.envs.examples:StatelessCartPole", {}),
        ("MultiAgentCartPole", {"num_agents": 3}),
    ],
)
def test_right_environments(use, kwargs):
    assert problems(use, **kwargs) == []


@pytest.mark.parametrize(
    ("use", "kwargs", "key", "message"),
    [
        ("CartPol-v1", {}, "env.use", "did you mean CartPole-v1?"),
        ("cartpole-v1", {}, "env.use", "did you mean CartPole-v1?"),
        (":CartPole-v1", {}, "env.use", "the name of the module before the colon is missing"),
        ("CartPole-v9", {}, "env.use", "did you mean CartPole-v"),
        ("Labyrint", {}, "env.use", "did you mean Labyrinth?"),
        ("statelesscartpole", {}, "env.use", "did you mean StatelessCartPole?"),
        ("RockPaperScisors", {}, "env.use", "did you mean RockPaperScissors?"),
        ("TakeTurns", {"gaol": 3}, "env.kwargs.gaol", "did you mean goal?"),
        ("no.such.package:Cart-v0", {}, "env.use", "there is no module 'no'"),
        ("no_such:make", {}, "env.use", "there is no module 'no_such'"),
        ("FetchReach-v4", {}, "env.use", "write gymnasium_robotics:FetchReach-v4"),
        ("ale_py:ALE/Pong-v5", {}, "env.use", "write ALE/Pong-v5"),
        ("fake_algorithm:Maz", {}, "env.use", "fake_algorithm has no 'Maz' - did you mean Maze?"),
        ("fake_algorithm:CONSTANT", {}, "env.use", "is not callable: it is of type int"),
        ("fake_algorithm:Maze", {}, "env", "needs the argument 'size'"),
        ("fake_algorithm:Maze", {"size": 1, "wall": 2}, "env.kwargs.wall", "did you mean walls?"),
        ("Labyrinth", {"size": 1, "wall": 2}, "env.kwargs.wall", "did you mean walls?"),
        (
            "CartPole-v1",
            {"suton": 1},
            "env.kwargs.suton",
            "takes no such argument; it takes sutton",
        ),
        (
            "CartPole-v1",
            {"max_episode_step": 5},
            "env.kwargs.max_episode_step",
            "did you mean max_episode_steps?",
        ),
    ],
)
@pytest.mark.usefixtures("registered")
def test_wrong_environments(use, kwargs, key, message):
    ((found_key, found_message),) = problems(use, **kwargs)
    assert found_key == key
    assert message in found_message


@pytest.mark.parametrize(
    ("use", "module", "extra"),
    [
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("PongNoFrameskip-v4", "ale_py", "atari"),
        ("LunarLander-v3", "Box2D", "box2d"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
    ],
)
def test_a_missing_extra_is_named(monkeypatch, use, module, extra):
    monkeypatch.setattr(registry, "is_installed", lambda name: name != module)
    message = f'{use} needs {module}, which is not installed: pip install "rlrun[{extra}]"'
    assert problems(use) == [("env.use", message)]


@needs_envpool
@pytest.mark.parametrize(
    ("use", "kwargs"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"max_episode_steps": 50, "num_threads": 2}),
        ("Pong-v5", {"stack_num": 1, "repeat_action_probability": 0}),
        ("Ant-v4", {"from_pixels": True, "render_width": 64}),
    ],
)
def test_right_environments_of_envpool(use, kwargs):
    assert problems(use, mode="envpool", **kwargs) == []


@needs_envpool
@pytest.mark.parametrize(
    ("use", "kwargs", "key", "message"),
    [
        ("CartPol-v1", {}, "env.use", "did you mean CartPole-v1?"),
        ("ALE/Pong-v5", {}, "env.use", "did you mean Pong-v5?"),
        ("some.module:make", {}, "env.use", "EnvPool has no environment"),
        ("Pong-v5", {"frameskip": 4}, "env.kwargs.frameskip", "did you mean frame_skip?"),
        ("Pong-v5", {"frame_skip": "4"}, "env.kwargs.frame_skip", "got '4'"),
        (
            "Pong-v5",
            {"gray_scale": 1},
            "env.kwargs.gray_scale",
            "of the same type as the default True",
        ),
        ("Pong-v5", {"reward_clip": True}, "env.kwargs.reward_clip", "connectors.clip_rewards"),
        ("Pong-v5", {"episodic_life": True}, "env.kwargs.episodic_life", "remove this key"),
        ("CartPole-v1", {"seed": 1}, "env.kwargs.seed", "the experiment's `seed`"),
        ("CartPole-v1", {"num_envs": 8}, "env.kwargs.num_envs", "num_envs_per_env_runner"),
        ("CartPole-v1", {"from_pixels": True}, "env", "only supported for MuJoCo"),
        ("Pong-v5", {"max_num_players": 2}, "env.use", "has 2 players"),
    ],
)
def test_wrong_environments_of_envpool(use, kwargs, key, message):
    ((found_key, found_message),) = problems(use, mode="envpool", **kwargs)
    assert found_key == key
    assert message in found_message


def test_the_missing_extra_of_envpool_is_named(monkeypatch):
    monkeypatch.setattr(registry, "is_installed", lambda module: module != "envpool")
    message = 'envpool is not installed: pip install "rlrun[envpool]"'
    found = problems("CartPole-v1", mode="envpool")
    assert found == [("env_runners.gym_env_vectorize_mode", message)]


@pytest.mark.parametrize("use", ["Pendulum-v1", "StatelessCartPole", "fake_algorithm:classical"])
def test_vector_code_is_asked_only_of_ids_that_bring_it(use):
    assert problems("CartPole-v1", mode="vector_entry_point") == []
    [(key, message)] = problems(use, mode="vector_entry_point")
    assert key == "env_runners.gym_env_vectorize_mode"
    assert f"{use} comes with no vector environment" in message


def test_environments_with_several_agents_need_policies_and_no_pool():
    ((key, message),) = problems("CartPole-v1", mode="envpool", policies=["a"])
    assert key == "env_runners.gym_env_vectorize_mode"
    assert "one agent" in message
    found = dict(problems("pettingzoo/sisl/pursuit_v5"))
    assert "has several agents: name their policies" in found["multi_agent"]


@pytest.mark.parametrize("argument", [{"frameskip": 4}, {"frameskip": [2, 5]}, {"obs_type": "ram"}])
def test_what_the_preprocessing_of_a_game_makes_itself_is_no_argument(argument) -> None:
    pytest.importorskip("ale_py")
    ((address, message),) = problems("ALE/Pong-v5", **argument)
    assert address == f"env.kwargs.{next(iter(argument))}"
    assert "the deepmind preprocessing" in message
    assert problems("ALE/Pong-v5", frameskip=1, full_action_space=True) == []
