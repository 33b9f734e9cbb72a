"""EnvPool's environments give the transitions, episodes and flags of a hand-made account."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from rlrun.config.schema import EnvRunnersConfig, EnvSpec
from rlrun.data import columns as col
from rlrun.data.seeding import Role, episode_seed
from rlrun.envs.env import EnvContext
from rlrun.envs.errors import EnvError
from rlrun.envs.vector_env import make_vector_env
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.evaluation import run_episodes
from rlrun.sampling.runner_connectors import reward_pipeline
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest

envpool = pytest.importorskip("envpool", reason="the extra envpool is not installed")

from rlrun.envs.envpool_env import pool_maker  # noqa: E402  imports nothing without the extra

SEEDS = [11, 12, 13]
NUM_ENVS = len(SEEDS)


def make(use: str = "CartPole-v1", num_envs: int = NUM_ENVS, **settings: Any) -> Any:
    kwargs = settings.pop("kwargs", {})
    return make_vector_env(
        EnvSpec(use=use, kwargs=kwargs),
        num_envs,
        EnvRunnersConfig(gym_env_vectorize_mode="envpool", **settings),
    )


def bare_pool(use: str, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of bounds that lose precision
        pool = envpool.make_gymnasium(use, num_envs=NUM_ENVS, **kwargs)
        assert pool.observation_space is not None  # made, with its warnings, at the first look
    return pool


def scripted(env_index: int, step: int) -> int:
    """Falls over soon in the first sub-environment; balances for a while in the others."""
    return 1 if env_index == 0 else (step // (1 + env_index)) % 2


def by_hand(steps: int, limit: int) -> list[list[tuple[Any, ...]]]:
    """Each environment's transitions from a bare pool, which spends a step of its own on each
    reset.
    """
    pool = bare_pool("CartPole-v1", seed=SEEDS, max_episode_steps=limit)
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(NUM_ENVS)]
    now, _ = pool.reset()
    over = np.zeros(NUM_ENVS, bool)
    while min(map(len, rows)) < steps:
        actions = np.array(
            [scripted(env_index, len(rows[env_index])) for env_index in range(NUM_ENVS)]
        )
        obs, rewards, terminateds, truncateds, infos = pool.step(actions)
        for env_index in range(NUM_ENVS):
            if over[env_index]:  # a reset: no reward, no flag, and the count begins again
                assert (rewards[env_index], infos["elapsed_step"][env_index]) == (0, 0)
                continue
            flags = bool(terminateds[env_index]), bool(truncateds[env_index])
            rows[env_index].append(
                (
                    now[env_index].tolist(),
                    float(rewards[env_index]),
                    *flags,
                    obs[env_index].tolist(),
                )
            )
        over = terminateds | truncateds
        now = obs
    return [env_index[:steps] for env_index in rows]


def transitions(env: Any, steps: int) -> list[list[tuple[Any, ...]]]:
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(NUM_ENVS)]
    now = env.reset(SEEDS).copy()
    for step in range(steps):
        actions = np.array([scripted(env_index, step) for env_index in range(NUM_ENVS)])
        obs, rewards, terminateds, truncateds, _ = env.step(actions)
        for env_index in range(NUM_ENVS):
            flags = bool(terminateds[env_index]), bool(truncateds[env_index])
            rows[env_index].append(
                (
                    now[env_index].tolist(),
                    float(rewards[env_index]),
                    *flags,
                    obs[env_index].tolist(),
                )
            )
        now, done = obs.copy(), terminateds | truncateds
        if done.any():
            now[done] = env.reset_envs(done, [0] * NUM_ENVS)[done]
    env.close()
    return rows


@pytest.mark.parametrize("limit", [15, 500])
def test_transitions_equal_a_bare_pool_without_its_reset_steps(limit: int) -> None:
    found = transitions(make(kwargs={"max_episode_steps": limit}), 200)
    assert found == by_hand(200, limit)
    ends = [(row[2], row[3]) for env_index in found for row in env_index]
    assert (True, False) in ends
    assert ((False, True) in ends) == (limit == 15)


def test_the_number_of_threads_changes_nothing() -> None:
    first = transitions(make(kwargs={"num_threads": 1}), 100)
    assert transitions(make(kwargs={"num_threads": 3}), 100) == first


def test_a_pole_that_falls_at_the_time_limit_is_a_termination_too() -> None:
    """As with gymnasium's own; a bare pool says truncated alone."""
    lengths = [
        next(i for i, row in enumerate(env_index, 1) if row[2]) for env_index in by_hand(100, 500)
    ]
    env = make(kwargs={"max_episode_steps": lengths[0]})
    env.reset(SEEDS)
    for step in range(lengths[0]):
        actions = np.array([scripted(env_index, step) for env_index in range(NUM_ENVS)])
        _, _, terminateds, truncateds, _ = env.step(actions)
    assert (terminateds[0], truncateds[0]) == (True, True)
    bare = by_hand(lengths[0], lengths[0])[0][-1]
    assert (bare[2], bare[3]) == (False, True)


def test_a_limit_that_is_part_of_the_game_is_left_alone() -> None:
    """MiniGrid pays 1 - 0.9 * steps / limit."""
    env = make("MiniGrid-Empty-5x5-v0", 1, kwargs={"max_episode_steps": 50})
    env.reset([1])
    for action in (2, 2, 1, 2, 2):
        _, rewards, terminateds, _, _ = env.step(np.array([action]))
    assert terminateds[0]
    assert rewards[0] == pytest.approx(1 - 0.9 * 5 / 50)


def test_nested_observations_and_infos_by_env() -> None:
    env = make("MiniGrid-Empty-Random-6x6-v0")
    first = {key: part.copy() for key, part in env.reset(SEEDS).items()}
    obs, _, _, _, infos = env.step(np.full(NUM_ENVS, 2))
    assert obs["image"].shape == (NUM_ENVS, 7, 7, 3)
    assert [info["agent_pos"].tolist() for info in infos.by_env.values()] == [
        position.tolist() for position in infos["agent_pos"]
    ]
    assert infos.get("episode_continues") is None
    mask = np.array([False, True, False])
    bare = bare_pool("MiniGrid-Empty-Random-6x6-v0", seed=SEEDS)
    for key, part in bare.reset()[0].items():
        np.testing.assert_array_equal(part, first[key])
    bare.step(np.full(NUM_ENVS, 2))
    fresh, expected = env.reset_envs(mask, SEEDS), bare.reset(np.array([1]))[0]
    for key in expected:
        np.testing.assert_array_equal(fresh[key][mask], expected[key])
        np.testing.assert_array_equal(fresh[key][~mask], obs[key][~mask])


def test_bounds_that_no_observation_could_keep_are_mended() -> None:
    env = make("LunarLander-v3")
    assert np.isneginf(env.single_observation_space.low).all()
    assert env.reset(SEEDS).shape == (NUM_ENVS, 8)


def runner_spec(num_envs: int = NUM_ENVS, seed: int = 3, **settings: Any) -> RunnerSpec:
    kwargs = settings.pop("kwargs", {})
    return RunnerSpec(
        EnvSpec(use="CartPole-v1", kwargs=kwargs),
        EnvRunnersConfig(
            num_envs_per_env_runner=num_envs, gym_env_vectorize_mode="envpool", **settings
        ),
        seed=seed,
    )


def fragments(runner: EnvRunner, lengths: list[int]) -> tuple[list[Any], dict[int, list[Any]]]:
    """Finished episodes, and all rows by episode."""
    weights = np.zeros(len(runner.policy.get_weights()), np.float32)
    finished: list[Any] = []
    by_episode: dict[int, list[Any]] = {}
    for fragment, length in enumerate(lengths):
        reply = runner.sample_fragment(SampleRequest(fragment, length, 1), weights)
        assert len(reply.batch) == runner.num_envs * length
        finished += reply.episodes
        for row in reply.batch.rows():
            by_episode.setdefault(int(row[col.EPS_ID]), []).append(row)
    return finished, by_episode


def test_a_runners_episodes_equal_a_bare_pool_given_its_actions() -> None:
    runner = EnvRunner(runner_spec(kwargs={"max_episode_steps": 20}))
    seeds = [episode_seed(runner.spec.seed, Role.TRAIN, 0, i, 0) for i in range(NUM_ENVS)]
    finished, by_episode = fragments(runner, [37, 50, 13])
    for env_index in range(NUM_ENVS):
        rows = [rows for i, rows in sorted(by_episode.items()) if (i >> 32) & 0xFFFF == env_index]
        played = [row for episode in rows for row in episode]
        bare = bare_pool("CartPole-v1", seed=seeds, max_episode_steps=20)
        before = bare.reset()[0][env_index]
        for row in played:
            step = bare.step(np.full(NUM_ENVS, row[col.ACTIONS]))
            np.testing.assert_array_equal(row[col.OBS], before)
            np.testing.assert_array_equal(row[col.NEXT_OBS], step[0][env_index])
            assert row[col.REWARDS] == step[1][env_index] == 1
            assert (
                row[col.TERMINATEDS] | row[col.TRUNCATEDS]
                == step[2][env_index] | step[3][env_index]
            )
            before = step[0][env_index]
            if step[2][env_index] or step[3][env_index]:
                before = bare.step(np.zeros(NUM_ENVS, int))[0][env_index]  # the step of the reset
    lengths = {i: len(rows) for i, rows in by_episode.items()}
    assert len(finished) > 10
    for record in finished:
        assert record.length == record.episode_return == lengths[record.episode_id]


def test_runners_and_seeds_have_episodes_of_their_own() -> None:
    first = fragments(EnvRunner(runner_spec()), [40])[1]
    again = fragments(EnvRunner(runner_spec()), [40])[1]
    assert [[r[col.OBS].tolist() for r in rows] for rows in first.values()] == [
        [r[col.OBS].tolist() for r in rows] for rows in again.values()
    ]
    others = [EnvRunner(runner_spec(seed=4)), EnvRunner(runner_spec(), runner_index=1)]
    starts = {tuple(rows[0][col.OBS]) for rows in first.values()}
    for other in others:
        assert not starts & {tuple(rows[0][col.OBS]) for rows in fragments(other, [40])[1].values()}


@pytest.mark.parametrize("soft", [False, True])
def test_a_horizon_ends_episodes_and_raises_the_time_limit(soft: bool) -> None:
    settings = {"horizon": 8, "soft_horizon": soft}
    runner = EnvRunner(runner_spec(kwargs={"max_episode_steps": 5}, **settings))
    records, by_episode = fragments(runner, [60])
    lengths = {record.length for record in records}
    assert max(lengths) == 8
    assert 5 not in lengths
    after = [
        (earlier[-1][col.NEXT_OBS].tolist(), later[0][col.OBS].tolist())
        for (i, earlier), (j, later) in pairwise(sorted(by_episode.items()))
        if i + 1 == j and len(earlier) == 8 and not earlier[-1][col.TERMINATEDS]
    ]
    assert after
    assert all((end == begin) == soft for end, begin in after)


def test_evaluation_episodes_depend_on_their_seeds_alone() -> None:
    def records(num_envs: int) -> list[tuple[int, int, float]]:
        runner = EnvRunner(runner_spec(num_envs), role=Role.EVALUATION)
        played = run_episodes(runner, range(5), seed=9, explore=True)
        runner.stop()
        return [(r.episode_id, r.length, r.episode_return) for r in played]

    assert records(1) == records(3)
    assert len({length for _, length, _ in records(5)}) > 1


def test_a_runner_that_is_restored_goes_on_with_fresh_episodes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = EnvRunner(runner_spec())
    _, before = fragments(first, [15])
    second = EnvRunner(runner_spec())
    second.set_state(first.get_state())
    assert "all running episodes start afresh" in caplog.text
    _, after = fragments(second, [15])
    assert not before.keys() & after.keys()
    starts = {tuple(rows[0][col.OBS]) for rows in before.values()}
    assert not starts & {tuple(rows[0][col.OBS]) for rows in after.values()}


def test_a_remote_pool_has_as_many_threads_as_its_runner_has_cpus() -> None:
    spec, settings = EnvSpec(use="CartPole-v1"), EnvRunnersConfig(num_cpus_per_env_runner=3)
    assert pool_maker(spec, settings, EnvContext(worker_index=1)).kwargs["num_threads"] == 3
    chosen = EnvContext({"num_threads": 2}, worker_index=1)
    assert pool_maker(spec, settings, chosen).kwargs["num_threads"] == 2
    assert "num_threads" not in pool_maker(spec, settings, EnvContext()).kwargs


def test_a_render_mode_gives_a_frame_for_each_env_index() -> None:
    settings = EnvRunnersConfig(gym_env_vectorize_mode="envpool")
    spec = EnvSpec(use="CartPole-v1")
    for training in (True, False):
        env = make_vector_env(
            spec, 2, settings, EnvContext({}, training=training), render_mode="rgb_array"
        )
        env.reset([1, 2])
        left, right = env.render()
        assert left.shape == right.shape == (400, 600, 3)
        assert (left != right).any()


def test_what_a_pool_cannot_be_made_of_is_said_by_name() -> None:
    with pytest.raises(EnvError, match="did you mean CartPole-v1") as caught:
        make("CartPol-v1")
    assert caught.value.phase == "constructor"


def test_rewards_of_atari_are_clipped_for_learning_alone() -> None:
    settings = EnvRunnersConfig(gym_env_vectorize_mode="envpool")
    games = RunnerSpec(EnvSpec(use="Pong-v5"), settings)
    assert not reward_pipeline(games).identity
    assert reward_pipeline(runner_spec()).identity
