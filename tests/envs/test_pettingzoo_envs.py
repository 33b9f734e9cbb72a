"""PettingZoo's environments by id, in both of its interfaces."""

import numpy as np
import pytest

from rlrun import PPOConfig
from rlrun.config.problems import ConfigError
from rlrun.config.schema import EnvSpec
from rlrun.envs.multi_agent_env import make_multi_agent_env
from rlrun.envs.pettingzoo_envs import adapted, make

pytest.importorskip("pettingzoo")


@pytest.mark.parametrize(
    ("use", "turns"), [("classic/rps-v2", False), ("classic/tictactoe-v3", True)]
)
def test_random_play_conserves_what_the_environment_rewards(use, turns):
    env = make_multi_agent_env(EnvSpec(use=f"pettingzoo/{use}"))
    rng = np.random.default_rng(0)
    for seed in range(5):
        observations, _ = env.reset(seed=seed)
        over, steps = False, 0
        while not over:
            assert len(observations) == 1 if turns else len(observations) == 2
            actions = {}
            for agent, seen in observations.items():
                legal = np.flatnonzero(seen["action_mask"]) if turns else np.arange(3)
                actions[agent] = int(rng.choice(legal))
            observations, rewards, terminateds, truncateds, _ = env.step(actions)
            over = terminateds["__all__"] or truncateds["__all__"]
            steps += 1
        assert abs(sum(rewards.values())) == 0  # both are zero-sum games
        assert steps >= 5
    env.close()


def test_agents_that_take_turns_have_the_infos_of_the_environment():
    inner = make("pettingzoo/classic/tictactoe-v3", {}).unwrapped
    env = adapted(inner)
    _, infos = env.reset(seed=0)
    assert infos == {"player_1": {}}
    for turn, action in enumerate((0, 3, 1, 4, 2)):  # the first player wins
        inner.infos = {agent: {"turn": turn} for agent in inner.agents}
        infos = env.step({inner.agent_selection: action})[4]
        names = [inner.agent_selection] if turn < 4 else ["player_1", "player_2"]
        assert infos == {name: {"turn": turn} for name in names}


def test_an_unknown_id_is_named_with_what_is_near():
    config = PPOConfig().environment("pettingzoo/classic/rps-v3").multi_agent(policies=["p"])
    with pytest.raises(ConfigError, match="did you mean classic/rps-v2"):
        config.experiment()


def test_environments_that_are_another_package_now_are_named_by_it():
    config = PPOConfig().environment("pettingzoo/mpe/simple-spread-v3").multi_agent(policies=["p"])
    with pytest.raises(ConfigError, match=r"write mpe2\.simple_spread_v3:parallel_env"):
        config.experiment()


def test_ppo_trains_on_one(built):
    config = (
        PPOConfig()
        .environment("pettingzoo/classic/rps-v2", max_cycles=5)
        .env_runners(num_envs_per_env_runner=2)
        .multi_agent(policies=["player_0", "player_1"])
        .training(train_batch_size=32, minibatch_size=16, num_epochs=1)
    )
    row = built(config).train()
    assert row["env_steps"] == 32
    assert row["agent_steps"] > 32
    assert row["episodes"] > 0


def test_without_policies_it_is_refused_at_load():
    config = PPOConfig().environment("pettingzoo/classic/rps-v2")
    with pytest.raises(ConfigError, match=r"multi_agent: pettingzoo/classic/rps-v2 has several"):
        config.experiment()
