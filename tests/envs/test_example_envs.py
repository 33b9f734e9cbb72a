"""The small environments that come with rlrun."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlrun.config import registry
from rlrun.envs.env import find_creator
from rlrun.envs.examples import RepeatAfterMe, StatelessCartPole, StretchedPendulum


@pytest.mark.parametrize("name", registry.SHIPPED_ENVS)
def test_what_ships_has_a_short_name_and_a_line_about_it(name):
    creator = find_creator(name)
    assert creator is registry.import_object(registry.SHIPPED_ENVS[name])
    assert creator.__doc__
    env = creator()
    assert env.reset(seed=1)
    env.close()


def test_a_name_of_the_users_own_goes_first():
    registry.ENVS["RepeatAfterMe"] = StatelessCartPole
    try:
        assert find_creator("RepeatAfterMe") is StatelessCartPole
    finally:
        del registry.ENVS["RepeatAfterMe"]


def test_stateless_cartpole_is_cartpole_without_velocities():
    hidden, whole = StatelessCartPole(), gym.make("CartPole-v1")
    seen, known = hidden.reset(seed=3)[0], whole.reset(seed=3)[0]
    for action in (0, 1, 1, 0, 1):
        np.testing.assert_array_equal(seen, known[[0, 2]])
        seen, known = hidden.step(action)[0], whole.step(action)[0]
    assert hidden.observation_space.contains(seen)
    limited = StatelessCartPole(max_episode_steps=2)
    limited.reset(seed=0)
    assert [limited.step(0)[3] for _ in range(2)] == [False, True]


@pytest.mark.parametrize(("action", "torque"), [(300, -2), (400, 0), (450, 1), (500, 2)])
def test_stretched_pendulum_takes_torque_in_other_units(action, torque):
    stretched, plain = StretchedPendulum(low=300, high=500), gym.make("Pendulum-v1")
    assert (stretched.action_space.low, stretched.action_space.high) == (300, 500)
    stretched.reset(seed=3)
    plain.reset(seed=3)
    expected = plain.step(np.array([torque], np.float32))
    np.testing.assert_array_equal(stretched.step(np.array([action], np.float32))[0], expected[0])


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_repeat_after_me_pays_for_remembering(delay):
    env = RepeatAfterMe(delay=delay, length=20, num_tokens=3)
    check_env(env, skip_render_check=True)
    shown = [*[0] * delay, env.reset(seed=1)[0]]
    rewards = []
    over = False
    while not over:
        token, reward, over, truncated, _ = env.step(shown[-1 - delay])
        assert not truncated
        shown.append(token)
        rewards.append(reward)
    assert rewards == [1.0] * 20
    env.reset(seed=1)
    assert env.step((shown[0] + 1) % 3)[1] == -1.0
