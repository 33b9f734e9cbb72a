"""Episodes as callbacks in env runners see them: every step, in order, through restarts."""

from fractions import Fraction

import numpy as np
import pytest

from rlrun import Callbacks, PPOConfig
from rlrun.checkpoint.state_codec import decode, encode
from rlrun.data.seeding import Role

SEEN = []  # of the callbacks in this process
AGENTS = {
    "MultiAgentCartPole": ["agent_0", "agent_1"],
    "TakeTurns": ["player_0", "player_1"],
}


class Watching(Callbacks):
    """Counts, in each of the places that last as long as the episode."""

    def on_episode_created(self, env_runner, episode):
        assert (episode.length, episode.user_data) == (0, {})
        episode.user_data["order"] = ["created"]

    def on_episode_start(self, env_runner, episode):
        episode.user_data["order"].append("start")

    def on_episode_step(self, env_runner, episode):
        if episode.length == 1:
            episode.user_data["order"].append("step")
        assert episode.user_data["order"] == ["created", "start", "step"]
        over = episode.terminated or episode.truncated
        lengths = episode.hist_data.setdefault("lengths", [])
        lengths.append(float(episode.length))
        assert lengths == list(range(1, episode.length + 1))
        pushes = sum(int(action) for action in episode.actions.values())
        episode.user_data["pushes"] = episode.user_data.get("pushes", 0) + pushes
        episode.custom_metrics["pushes"] = float(episode.user_data["pushes"])
        if over:
            SEEN.append((env_runner.role, episode))

    def on_episode_end(self, algorithm, episode):
        if not algorithm.config.env_runners.num_env_runners:
            *_, live = [each for _, each in SEEN if each.id == episode.episode_id]
            assert live.length == episode.length
            assert live.episode_return == episode.episode_return
            assert live.env_index == episode.env_index
        assert len(episode.hist_data["lengths"]) == episode.length
        assert 0 <= episode.custom_metrics["pushes"] <= 2 * episode.length


@pytest.fixture(autouse=True)
def _no_callbacks_set_aside(caplog):
    """What callbacks raise where they only observe is logged, and would not fail a test."""
    yield
    assert not [each for each in caplog.get_records("call") if "set aside" in each.getMessage()]


def watched(built, env="CartPole-v1", runners=0, **evaluation):
    config = PPOConfig().environment(env).callbacks(f"{__name__}:Watching").debugging(seed=2)
    config = config.training(train_batch_size=120, minibatch_size=60, num_epochs=1)
    if env in AGENTS:
        config = config.multi_agent(policies=AGENTS[env])
    config = config.env_runners(
        num_env_runners=runners, num_envs_per_env_runner=2, num_cpus_per_env_runner=0.1
    )
    return built(config.evaluation(**evaluation))


@pytest.mark.parametrize("env", ["CartPole-v1", *AGENTS])
@pytest.mark.parametrize("runners", [0, pytest.param(2, marks=pytest.mark.faults)])
def test_what_callbacks_keep_of_an_episode_lasts_to_its_end_and_through_a_resume(
    request, built, env, runners
):
    if runners:
        request.getfixturevalue("shared_actors")
    SEEN.clear()
    straight, resumed = watched(built, env, runners), watched(built, env, runners)
    straight.train()
    state, weights = straight.get_state(), straight.get_weights()
    expected = straight.train()["custom_metrics"]
    assert expected["pushes_max"] > expected["pushes_min"]
    resumed.set_weights(weights)
    resumed.set_state(state)
    assert resumed.train()["custom_metrics"] == expected


STARTED = []


class Starting(Callbacks):
    def on_episode_start(self, env_runner, episode):
        STARTED.append((episode.id, episode.length))


def test_a_state_from_before_the_first_episode_begins_with_a_new_one(built):
    STARTED.clear()
    config = PPOConfig().environment("CartPole-v1").callbacks(f"{__name__}:Starting")
    algorithm = built(config.training(train_batch_size=4, minibatch_size=4))
    state = algorithm.get_state()
    algorithm.train()
    algorithm.set_state(state)
    algorithm.train()
    assert STARTED == [(0, 0), (0, 0)]


class Keeping(Callbacks):
    def __init__(self, what):
        # Of one: sets have no order.
        self.what = {"set": {"a"}, "object": object(), "metric": Fraction(1)}[what]

    def on_episode_start(self, env_runner, episode):
        if isinstance(self.what, Fraction):
            episode.custom_metrics["seen"] = self.what
        episode.user_data["seen"] = None if isinstance(self.what, Fraction) else self.what


@pytest.mark.parametrize("what", ["set", "object", "metric"])
def test_sets_in_user_data_are_saved_and_what_cannot_be_is_refused_with_the_callbacks_name(
    built, what
):
    config = PPOConfig().environment("CartPole-v1").training(train_batch_size=32, minibatch_size=32)
    algorithm = built(config.callbacks({"use": f"{__name__}:Keeping", "what": what}))
    if what != "set":
        place = r"what Keeping keeps in an episode: .*(user_data|custom_metrics)/seen"
        with pytest.raises(TypeError, match=place):
            algorithm.train()
    else:
        algorithm.train()
        state = algorithm.get_state()
        document, arrays = encode(state)
        assert "'$set': ['a']" in str(document)
        assert str(decode(document, arrays)) == str(state)


def test_the_last_step_is_there_in_the_environments_own_values(built):
    SEEN.clear()
    watched(built).train()
    for _, episode in SEEN:
        assert episode.terminated
        assert not episode.truncated
        assert episode.observations["agent0"].shape == (4,)
        assert abs(episode.observations["agent0"][2]) > 0.2  # the pole has fallen
        assert episode.rewards == {"agent0": 1.0}
        assert episode.infos == {"agent0": {}}
        assert episode.policies == {"agent0": "default_policy"}


def test_agents_have_returns_and_policies_of_their_own(built):
    SEEN.clear()
    watched(built, "MultiAgentCartPole").train()
    for _, episode in SEEN:
        assert set(episode.returns) == {"agent_0", "agent_1"} == set(episode.policies.values())
        assert sum(episode.returns.values()) == episode.episode_return
        assert set(map(np.shape, episode.observations.values())) == {(4,)}


def test_episodes_of_evaluations_are_shown_and_only_those_that_are_asked_for(built):
    SEEN.clear()
    algorithm = watched(built, episodes=3, num_envs=2)
    algorithm.evaluate()
    assert [role for role, _ in SEEN] == [Role.EVALUATION] * 3
    assert sorted(episode.id for _, episode in SEEN) == [0, 1, 2]
