"""From a name to a checked environment, and the Atari wrappers that gymnasium lacks."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from counting_envs import Counter, LeavesItsSpace, NestedCounter, NoInfo, NoTuple, Pays
from gymnasium import spaces
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from rlrun.config import registry
from rlrun.config.policies import PolicySettings
from rlrun.config.schema import EnvRunnersConfig, EnvSpec, ModelConfig, TrainingConfig
from rlrun.data import columns as col
from rlrun.envs.atari import EpisodicLife, FireReset
from rlrun.envs.env import EnvContext, check_env, make_env, observation_problem
from rlrun.envs.errors import EnvError
from rlrun.envs.multi_agent_env import (
    Copies,
    MultiAgentEnv,
    check_multi_agent_env,
    make_multi_agent_env,
)
from rlrun.envs.vector_env import make_vector_env
from rlrun.policies.policy import Policy
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.runner_messages import MultiAgentSpec, RunnerSpec, SampleRequest


def test_an_id_a_class_and_a_registered_name_build_the_same_environment() -> None:
    registry.ENVS["my-cart"] = lambda config: gymnasium.make("CartPole-v1", **config)
    try:
        specs = [
            EnvSpec(use="CartPole-v1", max_episode_steps=9),
            EnvSpec(use="gymnasium:make", id="CartPole-v1", max_episode_steps=9),
            EnvSpec(use="my-cart", max_episode_steps=9),
        ]
        for spec in specs:
            env = make_env(spec)
            observation, _ = env.reset(seed=4)
            np.testing.assert_allclose(observation, gymnasium.make("CartPole-v1").reset(seed=4)[0])
            assert env.spec is not None
            assert env.spec.max_episode_steps == 9
    finally:
        del registry.ENVS["my-cart"]


def test_creators_are_called_the_way_their_signature_asks_for() -> None:
    place = EnvContext(worker_index=3, vector_index=1, num_workers=4)
    env: Any = make_env(EnvSpec(use="counting_envs:told_its_place", size=2), place)
    assert (env.place, env.size) == ((3, 1, 4, True), 2)
    env = make_env(EnvSpec(use="counting_envs:classical", fail_at=5), place.for_sub_env(6))
    assert (env.place, env.fail_at) == (6, 5)
    env = make_env(EnvSpec(use="counting_envs:Counter", fail_at=5))
    assert env.fail_at == 5


def test_sub_environments_do_not_share_their_arguments() -> None:
    context = EnvContext({"sizes": [1]})
    first, second = context.for_sub_env(0), context.for_sub_env(1)
    first["sizes"].append(2)
    assert second["sizes"] == context["sizes"] == [1]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("CartPole-v99", "CartPole-v99"),
        ("no_such_module:Env", "no_such_module"),
        ("counting_envs:Nothing", "Nothing"),
        ("counting_envs:FailsInConstructor", "no env"),
        ("counting_envs:autonomous", "gymnasium.Env"),
    ],
)
def test_what_cannot_be_built_is_named_with_the_reason(use: str, message: str) -> None:
    with pytest.raises(EnvError, match=message) as caught:
        make_env(EnvSpec(use=use))
    assert (caught.value.phase, caught.value.env_id) == ("constructor", use)


class Flags(Counter):
    """Its first ``terminated`` is ``value``."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self._value = value

    def step(self, action: Any) -> Any:
        observation, reward, _, *further = super().step(action)
        return observation, reward, self._value, *further


@pytest.mark.parametrize("flag", [True, np.True_, 0, np.array(False)])
def test_the_check_takes_flags_of_any_type(flag: Any) -> None:
    check_env(Flags(flag), "Mine-v0")


@pytest.mark.parametrize(
    ("env", "phase", "message"),
    [
        (Counter(fail_at=0), "step", "the counter stopped"),
        (Counter(nan_at=0), "observation", r"NaN at index \(1,\)"),
        (Counter(nan_at=1), "observation", "NaN"),
        (LeavesItsSpace(), "observation", r"2000\.0, outside of \[-1\.0, 1000\.0\]"),
        (NoTuple(), "step", "but returned 4 values"),
        (Pays("1", step=1), "step", "reward is not a number: '1'"),
        (Pays(b"1", step=1), "step", "reward is not a number: b'1'"),
        (Pays(np.inf, step=1), "step", "reward is inf"),
        (Flags("no"), "step", "terminated is neither true nor false: 'no'"),
        (Flags(None), "step", "terminated is neither true nor false: None"),
        (Pays(10**400, step=1), "step", "reward is too large"),
        (NoInfo(), "reset", "info must be a dict, not <class 'NoneType'>"),
    ],
)
def test_the_check_says_what_is_wrong(env: Any, phase: str, message: str) -> None:
    with pytest.raises(EnvError, match=message) as caught:
        check_env(env, "Mine-v0")
    assert caught.value.phase == phase
    assert "'Mine-v0'" in str(caught.value)


class Agents(MultiAgentEnv):
    """Two agents; what `reset` or `step` returns is replaced by ``answer``."""

    possible_agents = ("a", "b")
    observation_spaces = dict.fromkeys(possible_agents, spaces.Discrete(3))
    action_spaces = dict.fromkeys(possible_agents, spaces.Discrete(2))

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._answers.get("reset", ({"a": 0}, {}))

    def step(self, actions: Any) -> Any:
        assert actions.keys() == {"a"}, "an action of an agent without an observation"
        return self._answers.get("step", ({"b": 2}, {"a": 1.0}, {"__all__": False}, {}, {}))


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"reset": {"a": 0}}, r"reset\(\) must return 2 dicts by agent"),
        ({"reset": ({"z": 0}, {})}, "observations of 'z', which is not in possible_agents"),
        (
            {"reset": ({"a": 3}, {})},
            "wrong observation for agent 'a': observation 3 is not in Discrete",
        ),
        ({"reset": ({"b": 0}, {})}, "an action of an agent without an observation"),
        ({"step": ({}, {})}, r"step\(\) must return 5 dicts by agent"),
        ({"step": ({}, 1.0, {}, {}, {})}, "its rewards are a float"),
        ({"step": ({}, {"a": np.nan}, {}, {}, {})}, "rewarded agent 'a' with nan"),
        ({"step": ({}, {"a": "1"}, {}, {}, {})}, "rewarded agent 'a' with '1'"),
        ({"step": ({}, {}, {}, {"a": "no"}, {})}, "truncateds of 'a' that are neither true nor f"),
    ],
)
def test_the_check_of_several_agents_says_what_is_wrong(answers: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message) as caught:
        check_multi_agent_env(Agents(**answers), "Mine-v0")
    assert caught.value.phase == next(iter(answers)) or "an action" in message


def test_an_env_of_several_agents_is_checked_when_it_is_built() -> None:
    """Unless that is switched off; then its first step shows it."""
    env = EnvSpec(use=f"{__name__}:Agents", step=({}, {"a": np.nan}, {}, {}, {}))
    multi_agent = MultiAgentSpec({"p": PolicySettings(ModelConfig(), TrainingConfig())})
    with pytest.raises(EnvError, match="rewarded agent 'a' with nan"):
        EnvRunner(RunnerSpec(env, multi_agent=multi_agent))
    EnvRunner(RunnerSpec(env, EnvRunnersConfig(disable_env_checking=True), multi_agent=multi_agent))


def test_the_check_of_copies_of_an_env_sees_their_rewards() -> None:
    with pytest.raises(EnvError, match="rewarded agent 'agent_0' with '1'"):
        check_multi_agent_env(Copies(lambda: Pays("1", step=1), 2), "Mine-v0")


class InSpacesOfGymnasium(Agents):
    """Its spaces by agent are gymnasium's Dict, as in RLlib's examples."""

    observation_spaces = spaces.Dict(Agents.observation_spaces)
    action_spaces = spaces.Dict(Agents.action_spaces)


def test_the_spaces_of_several_agents_may_be_a_dict_space() -> None:
    made = make_multi_agent_env(EnvSpec(use=f"{__name__}:InSpacesOfGymnasium"))
    check_multi_agent_env(made, "InSpacesOfGymnasium")
    assert made.observation_spaces["a"] == spaces.Discrete(3)


def test_copies_need_an_agent() -> None:
    with pytest.raises(EnvError, match="num_agents must be at least 1, not 0"):
        make_multi_agent_env(EnvSpec(use="MultiAgentCartPole", num_agents=0))


def test_a_sound_env_passes_the_check() -> None:
    check_env(NestedCounter(), "Nested")
    check_multi_agent_env(Agents(), "Agents")
    check_env(gymnasium.make("Pendulum-v1"), "Pendulum-v1")


def test_the_check_can_be_switched_off() -> None:
    spec = EnvSpec(use="counting_envs:Counter", fail_at=0)
    env = make_vector_env(spec, 1, EnvRunnersConfig(disable_env_checking=True))
    env.reset([0])
    with pytest.raises(EnvError):
        make_vector_env(spec, 1, EnvRunnersConfig())


def test_observations_are_judged_by_shape_kind_and_bounds_but_not_by_float_precision() -> None:
    box = spaces.Box(0.0, 1.0, (2,), np.float32)
    assert observation_problem(box, np.array([0.25, 1.0])) is None
    assert observation_problem(box, [0.25, 1.0]) is None
    assert "shape (3,)" in str(observation_problem(box, np.zeros(3)))
    assert "dtype" in str(observation_problem(box, np.array(["a", "b"])))
    image = spaces.Box(0, 255, (2,), np.uint8)
    assert "dtype float64" in str(observation_problem(image, np.array([0.5, 1.0])))
    nested = spaces.Dict({"a": spaces.Tuple((box, spaces.Discrete(2)))})
    assert observation_problem(nested, {"a": (np.zeros(2), 1)}) is None
    assert "['a'][1]" in str(observation_problem(nested, {"a": (np.zeros(2), 2)}))
    assert "keys ['a']" in str(observation_problem(nested, {}))
    assert "tuple of 2" in str(observation_problem(nested, {"a": (np.zeros(2),)}))


class ThreeLives(gymnasium.Env[Any, Any]):
    """Loses a life every third step; the number of frames since the game began is observed."""

    observation_space = spaces.Box(0, 1e6, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self.frame, self.games, self.pressed = 0, 0, [0]
        self.ale = self

    def lives(self) -> int:
        return 3 - self.frame // 3

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.frame = 0
        self.games += 1
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.pressed.append(int(action))
        self.frame += 1
        return np.full(1, self.frame, np.float32), 1.0, self.lives() == 0, False, {}


def test_a_lost_life_ends_the_learners_episode_and_not_the_game() -> None:
    game = ThreeLives()
    env = EpisodicLife(game)
    ends = []
    env.reset(seed=0)
    for _ in range(18):
        observation, reward, terminated, truncated, info = env.step(0)
        assert (reward, truncated) == (1.0, False)
        if terminated:
            ends.append((int(observation[0]), info.get("episode_continues", False)))
            fresh, _ = env.reset(seed=1)
            assert fresh[0] == (observation[0] if info.get("life_lost") else 0)
    assert ends == [(3, True), (6, True), (9, False)] * 2
    assert game.games == 3


def three_lives() -> gymnasium.Env[Any, Any]:
    return EpisodicLife(ThreeLives())


class AlwaysZero(Policy):
    """Takes action 0."""

    def compute_actions(self, obs_batch: Any, state_batches: Any = None, **_: Any) -> Any:
        return np.zeros(len(obs_batch), np.int64), [], {}


def test_metrics_count_whole_games_and_learning_each_life() -> None:
    spec = RunnerSpec(
        EnvSpec(use=f"{__name__}:three_lives"),
        policy_factory=lambda observations, actions, model: AlwaysZero(observations, actions),
    )
    reply = EnvRunner(spec).sample_fragment(SampleRequest(0, 20))
    assert np.flatnonzero(reply.batch[col.TERMINATEDS]).tolist() == [2, 5, 8, 11, 14, 17]
    assert [(game.episode_return, game.length) for game in reply.episodes] == [(9.0, 9), (9.0, 9)]


def test_fire_is_pressed_after_each_reset() -> None:
    game = ThreeLives()
    env = FireReset(game)
    observation, _ = env.reset(seed=0)
    assert game.pressed == [0, 1, 2]
    assert observation[0] == 2


def test_frames_of_atari_are_those_of_gymnasiums_preprocessing() -> None:
    pytest.importorskip("ale_py")
    ours: Any = make_env(EnvSpec(use="ALE/Breakout-v5"), EnvContext(training=False))
    plain: Any = AtariPreprocessing(gymnasium.make("ALE/Breakout-v5", frameskip=1), frame_skip=4)
    theirs = FrameStackObservation(FireReset(plain), stack_size=4)
    rng = np.random.default_rng(0)
    for seed, most in ((1, 1000), (2, 20)):  # a whole game, and the beginning of the next
        steps = [(ours.reset(seed=seed), theirs.reset(seed=seed))]
        while steps[-1][0][2:3] != (True,) and len(steps) <= most:
            action = int(rng.integers(4))
            steps.append((ours.step(action), theirs.step(action)))
        assert len(steps) > min(most, 100)
        for own, other in steps:
            np.testing.assert_array_equal(own[0], other[0])
            assert own[1:] == other[1:]


def test_atari_is_preprocessed_in_training_and_evaluated_on_whole_games() -> None:
    pytest.importorskip("ale_py")
    settings = EnvRunnersConfig()
    train: Any = make_vector_env(EnvSpec(use="ALE/Breakout-v5"), 1, settings)
    observations = train.reset([1])
    assert observations.shape == (1, 4, 84, 84)
    assert observations.dtype == np.uint8
    play: Any = make_vector_env(
        EnvSpec(use="ALE/Breakout-v5"), 1, settings, EnvContext({}, training=False)
    )

    def wrappers(env: Any) -> set[str]:
        names = set()
        while isinstance(env, gymnasium.Wrapper):
            names.add(type(env).__name__)
            env = env.env
        return names

    common = {"AtariPreprocessing", "FireReset", "FrameStackObservation"}
    assert wrappers(train.envs[0]) >= common | {"EpisodicLife"}
    assert train.envs[0].get_wrapper_attr("noop_max") == 30
    assert train.envs[0].get_wrapper_attr("frame_skip") == 4
    assert wrappers(play.envs[0]) >= common
    assert "EpisodicLife" not in wrappers(play.envs[0])
    lost = False
    for _ in range(200):
        _, _, terminateds, _, infos = train.step(np.zeros(1, int))
        if terminateds[0]:
            lost = True
            assert infos["episode_continues"] == [True]
            break
    assert lost
    raw = make_vector_env(
        EnvSpec(use="ALE/Breakout-v5"), 1, EnvRunnersConfig(preprocessor_pref=None)
    )
    assert raw.single_observation_space.shape == (210, 160, 3)
