"""What connectors learn: every observation counted once, merged, sent on, kept in checkpoints."""

import os
import signal

import gymnasium as gym
import numpy as np
import pytest

from rlrun import Connector, PPOConfig
from rlrun.algorithms.result import is_wall_clock
from rlrun.connectors.custom import ConnectorError

BATCH = 96


class Unseeded(gym.Env):
    """Its observations do not follow from the seed, so no episode can be replayed."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    rng = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        self.left = 5
        return self.rng.random(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        return self.rng.random(2, np.float32), 1.0, self.left == 0, False, {}


class Shifted(Connector):
    """A user's connector that learns: subtracts the largest value that any runner has seen."""

    def __init__(self):
        self.most = self.since_flush = 0.0

    def __call__(self, observations, history):
        if history.update:
            self.since_flush = max(self.since_flush, float(observations.max()))
            self.most = max(self.most, self.since_flush)
        return observations - np.float32(self.most)

    def get_state(self):
        return {"most": self.most, "since_flush": self.since_flush}

    def set_state(self, state):
        self.most, self.since_flush = state["most"], state["since_flush"]

    def flush_deltas(self):
        most, self.since_flush = self.since_flush, 0.0
        return {"most": most} if most else {}

    def apply_deltas(self, deltas):
        self.most = max([self.most, *(delta["most"] for delta in deltas)])


class Noisy(Connector):
    """Actions are flipped now and then."""

    def __init__(self, seed, p):
        self.rng, self.p = np.random.default_rng(seed), p

    def __call__(self, actions, history):
        return np.where(self.rng.random(len(actions)) < self.p, 1 - actions, actions)

    def get_state(self):
        return {"rng": self.rng.bit_generator.state}

    def set_state(self, state):
        self.rng.bit_generator.state = state["rng"]


@pytest.fixture
def build(request, built):

    def make(env="CartPole-v1", runners=0, num_envs=2, policies=None, **env_runners):
        if runners:
            request.getfixturevalue("shared_actors")
        config = (
            PPOConfig()
            .environment(env)
            .env_runners(
                num_env_runners=runners,
                num_envs_per_env_runner=num_envs,
                num_cpus_per_env_runner=0.1,
                **{"observation_filter": "MeanStdFilter", **env_runners},
            )
            .training(train_batch_size=BATCH, minibatch_size=48, num_epochs=1)
            .evaluation(episodes=3)
            .debugging(seed=5)
        )
        if policies:
            config = config.multi_agent(policies=policies)
        return built(config)

    return make


def central_stat(algorithm):
    state = algorithm.get_state()["policies"]["connectors"]["default_policy"]["observations"]
    return state.get("default", state)["stat"]


def observations_so_far(algorithm, runners, num_envs):
    """Those that steps led to, and the first ones: of finished episodes and of running ones."""
    return algorithm.env_steps + algorithm.progress.episodes.total + max(runners, 1) * num_envs


def own_counts(algorithm):
    """Of the statistics that remote runners have."""
    return [
        state["policies"]["default_policy"]["connectors"]["observations"]["stat"]["count"]
        for state in algorithm.env_runner_group.get_states().values()
    ]


@pytest.mark.parametrize(
    ("runners", "mode"),
    [(0, "truncate_episodes"), (2, "truncate_episodes"), (0, "complete_episodes")],
)
def test_every_observation_is_counted_once(build, runners, mode):
    algorithm = build(runners=runners, batch_mode=mode)
    held, counts = 0, []
    for _ in range(4):
        algorithm.train()
        counts.append(central_stat(algorithm)["count"])
    if runners:  # theirs have what was merged after the third round, and their own since then
        assert sum(own_counts(algorithm)) == 2 * counts[2] + (counts[3] - counts[2])
    if mode == "complete_episodes":  # sampled and counted, delivered when the episode ends
        held = int(
            algorithm.env_runner_group.local_env_runner.get_state()["episodes"]["length"].sum()
        )
    counted = central_stat(algorithm)["count"]
    assert counted == observations_so_far(algorithm, runners, 2) + held
    algorithm.evaluate()
    assert central_stat(algorithm)["count"] == counted, "evaluation learns nothing"
    evaluating = (
        algorithm.evaluator.runner().actors["default_policy"].observations.get_state()["stat"]
    )
    assert repr(evaluating) == repr(central_stat(algorithm)), "and uses all that is known"


@pytest.mark.parametrize(
    ("env", "num_envs"),
    [
        (f"{__name__}:Unseeded", 2),
        ("counting_envs:autonomous", 1),
    ],
)
def test_episodes_that_start_afresh_are_counted_too(build, env, num_envs):
    """Where a restored runner cannot go on with its episodes, new ones begin."""
    algorithm = build(env, num_envs=num_envs)
    algorithm.train()
    before = central_stat(algorithm)["count"]
    state = algorithm.get_state()
    algorithm.set_state(state)
    assert central_stat(algorithm)["count"] == before
    episodes, steps = algorithm.progress.episodes.total, algorithm.env_steps
    algorithm.train()
    # The first observations come in place of those of the episodes that were given up.
    more = algorithm.env_steps - steps + algorithm.progress.episodes.total - episodes + num_envs
    runner = algorithm.env_runner_group.local_env_runner
    if not runner.envs.every_step_counts:  # it resets itself in the next fragment's first step
        more -= int((runner.get_state()["episodes"]["length"] == 0).sum())
    assert central_stat(algorithm)["count"] == before + more


def test_runners_statistics_may_be_thrown_away(build):
    algorithm = build(use_worker_filter_stats=False)
    for _ in range(2):
        algorithm.train()
    assert central_stat(algorithm)["count"] == 0
    kept = build()
    kept.train()
    state = kept.get_state()
    algorithm.set_state(state)
    algorithm.train()
    assert repr(central_stat(algorithm)) == repr(central_stat(kept)), "frozen as it was restored"


def test_connectors_without_statistics_are_not_sent(build):
    assert build().next_request().connector_state is not None
    assert build(observation_filter="NoFilter").next_request().connector_state is None


def test_runners_may_keep_statistics_of_their_own(build):
    algorithm = build(runners=2, update_worker_filter_stats=False)
    for _ in range(2):
        algorithm.train()
    counted = central_stat(algorithm)["count"]
    assert sum(own_counts(algorithm)) == counted, "the centre still knows everything"


def seeded_part(result, prefix=""):
    found = {}
    for key, value in result.items():
        if isinstance(value, dict):
            found |= seeded_part(value, f"{prefix}{key}/")
        elif not is_wall_clock(f"{prefix}{key}"):
            found[f"{prefix}{key}"] = value
    return found


CUSTOM = {
    "env_to_module_connector": Shifted,
    "module_to_env_connector": {"use": f"{__name__}:Noisy", "p": 0.1},
}


ONE, TWO = ("CartPole-v1", None), ("MultiAgentCartPole", ["agent_0", "agent_1"])


@pytest.mark.parametrize(
    ("env", "policies", "runners"),
    [(*ONE, 0), (*TWO, 0), pytest.param(*ONE, 2, marks=pytest.mark.faults)],
)
def test_custom_connectors_go_on_to_the_bit_and_evaluate_the_same(build, env, policies, runners):
    straight, resumed = (build(env, runners, policies=policies, **CUSTOM) for _ in range(2))
    for _ in range(2):
        straight.train()
    state, weights = straight.get_state(), straight.get_weights()
    for learned in state["policies"]["connectors"].values():
        assert learned["observations"]["connectors"]["0"]["most"] > 0
    resumed.set_weights(weights)
    resumed.set_state(state)
    for _ in range(2):
        assert seeded_part(straight.train()) == seeded_part(resumed.train())
    assert straight.evaluate() == resumed.evaluate() == straight.evaluate()
    if policies is None:
        assert central_stat(straight)["count"] == observations_so_far(straight, runners, 2)


class Raises(Connector):
    def __call__(self, observations, history):
        return {}["no such key"]


def test_a_failure_in_an_actor_arrives_as_it_is(build):
    algorithm = build(runners=1, env_to_module_connector=Raises)
    with pytest.raises(ConnectorError) as caught:
        algorithm.train()
    text = str(caught.value)
    assert text.startswith("Traceback")
    assert '{}["no such key"]' in text
    assert "rlrun/connectors" not in text
    assert text.endswith("connector test_connector_state:Raises failed")


@pytest.mark.faults
def test_a_killed_runner_counts_nothing_twice(build):
    def trained(kill):
        algorithm = build(runners=2, **CUSTOM)
        for iteration in range(4):
            if kill and iteration == 2:
                group = algorithm.env_runner_group
                victim, _ = group.foreach_env_runner(lambda runner: os.getpid())
                os.kill(victim, signal.SIGKILL)
            algorithm.train()
        assert algorithm.env_runner_group.num_restarts == int(kill)
        return algorithm.get_state()["policies"]["connectors"]

    assert repr(trained(kill=False)) == repr(trained(kill=True))


def test_a_state_that_was_restored_is_complete_before_connectors_learn_again(build, tmp_path):
    connector = {"env_to_module_connector": f"{__name__}:Shifted"}
    algorithm, resumed = build(**connector), build(**connector)
    algorithm.train()
    algorithm.save(tmp_path)
    resumed.restore(tmp_path)
    states = [each.get_state()["policies"]["connectors"] for each in (algorithm, resumed)]
    assert "most" in str(states[0])
    assert repr(states[0]) == repr(states[1])
