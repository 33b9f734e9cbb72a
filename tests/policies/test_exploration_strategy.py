"""Strategies of the user's own: `exploration.type` as a class."""

import numpy as np
import pytest
from gymnasium import spaces

from rlrun import DQNConfig, ExplorationStrategy, PPOConfig
from rlrun.config.problems import ConfigError
from rlrun.config.schema import ExplorationConfig, ModelConfig
from rlrun.config.section import UseSpec
from rlrun.policies.layers import QOptions
from rlrun.policies.q_policy import build_q_policy
from rlrun.policies.sac_policy import build_sac_policy

OBSERVED, BOX = spaces.Box(-1.0, 1.0, (3,)), spaces.Box(-1.0, 1.0, (2,))


class Steps(ExplorationStrategy):
    """As many hundredths beside the best action as steps have been explored in the episode."""

    schedules = ("scale",)

    def __init__(self, action_space, size=1.0):
        super().__init__(action_space)
        self.size, self.memory = size, {"explored": spaces.Box(0, 1000, (), np.int64)}

    def draw(self, rng, length, slots):
        return rng.random((length, slots, 1))

    def explore(self, best, inputs, noise, memory):
        assert noise.shape == (len(best), 1)
        steps = memory["explored"] + 1
        beside = self.settings["scale"] * self.size * steps / 100
        return best + beside.reshape(-1, *[1] * (best.ndim - 1)), {"explored": steps}


class ByEpsilon(Steps):
    schedules = ("epsilon",)


class Misnamed(Steps):
    schedules = ("epsilom",)


def uses(name, **arguments):
    return UseSpec(use=f"{__name__}:{name}", kwargs=arguments)


def sac(**settings):
    exploration = ExplorationConfig(type=uses("Steps", size=2.0), **settings)
    return build_sac_policy(OBSERVED, BOX, ModelConfig(hidden=(4,)), exploration=exploration)


def test_it_is_given_the_best_actions_its_memory_and_the_schedules_that_it_names():
    policy = sac()
    policy.set_exploration({"scale": 3.0})
    seen = {"obs": np.ones((2, 3), np.float32), "explored_before": np.array([0, 4])}
    noise = policy.draw_noise(np.random.default_rng(0), 1, 2)[0]
    best, _, kept = policy.compute_actions_from_input_dict(seen, explore=False)
    actions, _, extra = policy.compute_actions_from_input_dict(seen, explore=True, noise=noise)
    assert kept["explored"].tolist() == [0, 4]
    assert extra["explored"].tolist() == [1, 5]
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions - best, [[0.06, 0.06], [0.30, 0.30]], rtol=1e-5)


def test_it_waits_for_the_end_of_the_random_steps():
    policy = sac(random_steps=10)
    policy.set_exploration({"scale": 1.0, "random": 1.0})
    seen = {"obs": np.ones((500, 3), np.float32), "explored_before": np.zeros(500, np.int64)}
    actions, _, extra = policy.compute_actions_from_input_dict(seen, explore=True)
    assert not extra["explored"].any()
    assert abs(actions.mean()) < 0.1
    assert actions.std() == pytest.approx(1 / np.sqrt(3), abs=0.05)
    exploration = ExplorationConfig(type=uses("Steps"), random_steps=10)
    categories, model = spaces.Discrete(3), ModelConfig(hidden=(4,))
    made = build_q_policy(OBSERVED, categories, model, options=QOptions(), exploration=exploration)
    made.set_exploration({"scale": 1.0, "random": 1.0})
    assert {*made.compute_actions_from_input_dict(seen, explore=True)[0]} == {0, 1, 2}


def test_a_policy_with_weights_of_its_own_is_made_by_each_algorithm():
    exploration = ExplorationConfig(type=uses("Steps"))
    made = build_q_policy(
        OBSERVED,
        spaces.Discrete(3),
        ModelConfig(hidden=(4,), use_lstm=True, lstm_cell_size=4),
        options=QOptions(),
        exploration=exploration,
    )
    assert len(made.get_initial_state()) == 2
    assert {"obs", "state_in_0", "state_in_1", "explored_before"} <= made.view_requirements.keys()
    made.set_weights(made.get_weights() + 1)


def test_memory_begins_anew_in_each_episode_and_is_reported_by_schedule(built):
    config = DQNConfig().environment("CartPole-v1", max_episode_steps=5)
    config.exploration(type={"use": Steps, "size": 0.0}, scale=[[0, 1.0], [64, 0.5]])
    config.training(train_batch_size=64, num_steps_sampled_before_learning_starts=8)
    algorithm = built(config)
    batch = algorithm.sample()
    order = np.lexsort((batch["t"], batch["eps_id"]))
    explored, t = batch["explored"][order], batch["t"][order]
    assert (explored == t + 1).all()
    stats = algorithm.train()["learners"]["default_policy"]["learner_stats"]
    assert stats["scale"] == 0.5


@pytest.mark.parametrize(
    ("config", "exploration", "says"),
    [
        (DQNConfig, {"type": "EpsilonGredy"}, "type: expected .*did you mean EpsilonGreedy?"),
        (DQNConfig, {"type": "no_module:X"}, "exploration.type: there is no module"),
        (DQNConfig, {"type": f"{__name__}:uses"}, "is not a subclass of rlrun.ExplorationStrategy"),
        (DQNConfig, {"type": uses("Steps", siz=1)}, "type.siz: .*did you mean size?"),
        (DQNConfig, {"type": Steps, "epsilon": 0.5}, "epsilon: .*:Steps does not use it"),
        (DQNConfig, {"type": Steps, "runner_exponent": 7.0}, "exponent: .*:Steps does not use it"),
        (DQNConfig, {"type": Misnamed}, "Misnamed.schedules names 'epsilom'; choose from epsilon"),
        (PPOConfig, {"type": Steps}, "exploration: "),
    ],
)
def test_what_cannot_explore_is_refused(config, exploration, says):
    if isinstance(exploration["type"], UseSpec):
        spec = exploration["type"]
        exploration = {"type": {"use": spec.use, **spec.kwargs}}
    with pytest.raises(ConfigError, match=says):
        config().environment("CartPole-v1").exploration(**exploration).experiment()


def test_a_strategy_with_an_epsilon_may_have_one_of_each_runner():
    config = DQNConfig().environment("CartPole-v1")
    config = config.exploration(type=ByEpsilon, epsilon=0.4, runner_exponent=7.0)
    assert config.experiment().exploration.runner_exponent == 7.0
