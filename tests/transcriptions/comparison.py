"""Trains a few iterations, and holds the weights against those of a transcription."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from logged_envs import Rows, read_log
from plain_learners import Run
from plain_networks import Weights

ITERATIONS = 2
TWO_POLICIES = {"policies": ["a", "b"]}


class DrawsKept:
    """A generator that keeps what it drew, as ``(method, result)``."""

    def __init__(self, rng: np.random.Generator, draws: list[tuple[str, Any]]) -> None:
        self._rng, self._draws = rng, draws

    def __getattr__(self, method: str) -> Any:
        def draw(*args: Any, **kwargs: Any) -> Any:
            drawn = getattr(self._rng, method)(*args, **kwargs)
            self._draws.append((method, np.copy(drawn)))
            return drawn

        return draw


def trained(config: Any, log: Path, **env: Any) -> tuple[Any, dict[str, Weights], dict[str, Any]]:
    """An algorithm after its iterations, its first weights and the learners' draws, by policy."""
    name = env.pop("use", "logged_envs:LoggedEnv")
    config = config.environment(name, log=str(log), **env).debugging(seed=5)
    algorithm = config.env_runners(disable_env_checking=True).build()
    rng, fresh = np.random.default_rng(1), algorithm.get_weights()
    algorithm.set_weights(
        {k: v + 0.3 * rng.standard_normal(v.shape, dtype=np.float32) for k, v in fresh.items()}
    )
    first = by_policy(algorithm.get_weights())
    draws: dict[str, Any] = {policy_id: [] for policy_id in first}
    learner_rng = algorithm.learner_rng

    def kept(policy_id: str = "default_policy") -> DrawsKept:
        return DrawsKept(learner_rng(policy_id), draws[policy_id])

    algorithm.learner_rng = kept
    for _ in range(ITERATIONS):
        algorithm.train()
    algorithm.stop()
    return algorithm, first, draws


def by_policy(named: dict[str, Any]) -> dict[str, Weights]:
    """``<policy>/<parameter>`` as tensors by policy and parameter."""
    found: dict[str, Weights] = {}
    for name, values in named.items():
        policy_id, _, parameter = name.partition("/")
        found.setdefault(policy_id, {})[parameter] = torch.tensor(values)
    return found


def compare(
    config: Any,
    transcription: Callable[..., Weights],
    net: Any,
    log: Path,
    *,
    connect: Callable[[list[Rows], int], list[Rows]] | None = None,
    **env: Any,
) -> None:
    """Train, transcribe, and hold all weights of each policy to 1e-5.

    Args:
        connect: what connectors make of the streams, given the steps of a fragment.
        env: arguments of the environment; ``use`` names another one.
    """
    algorithm, first, draws = trained(config, log, **env)
    settings, last = algorithm.config, by_policy(algorithm.get_weights())
    actions = env.get("actions", "discrete")
    for policy_id, weights in first.items():
        streams = read_log(log / policy_id if len(first) > 1 else log)
        if actions == "bounded":
            streams = [{**rows, "actions": rows["actions"] / 8} for rows in streams]
        training, envs = algorithm.training_of(policy_id), len(streams)
        steps = training.train_batch_size // envs
        length = settings.env_runners.rollout_fragment_length
        length = steps if length == "auto" else length
        assert {len(rows["t"]) for rows in streams} == {ITERATIONS * steps}
        assert all(
            any(rows[flag].any() for rows in streams) for flag in ("terminateds", "truncateds")
        )
        run = Run(
            settings=training,
            replay=settings.replay,
            streams=connect(streams, length) if connect else streams,
            draws=draws[policy_id],
            length=length,
            fragments=steps // length,
            envs=envs,
            actions=actions,
            max_seq_len=algorithm.policies[policy_id].model.max_seq_len,
            iterations=ITERATIONS,
        )
        expected = transcription(run, net, weights)
        assert not run.draws
        moved = 0.0
        for name, values in expected.items():
            found = last[policy_id][name]
            np.testing.assert_allclose(found, values, rtol=0, atol=1e-5, err_msg=name)
            moved = max(moved, float((values - weights[name]).abs().max()))
        assert expected.keys() == weights.keys()
        assert moved > 1e-3
