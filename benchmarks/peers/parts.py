"""Microseconds of single parts of an iteration: rlrun's next to the textbook way of doing them.

Runs in rlrun's environment. A part is a function without arguments; its time is the median of
several repetitions of enough calls each. Sizes as in `EqualWork`: 8 envs, 128 steps.
"""

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from benchmarks.peers import driver
from benchmarks.peers.driver import EqualWork
from benchmarks.peers.replay_driver import SACWork

WORK = EqualWork()
OBSERVATION_SPACE = gym.spaces.Box(-10.0, 10.0, (4,), np.float32)
ACTION_SPACE = gym.spaces.Discrete(2)
REPETITIONS = 7
REPETITION_S = 0.1

Parts = Iterator[tuple[str, Callable[[], Any]]]


def microseconds(part: Callable[[], Any]) -> float:
    """Median time of one call."""
    part()
    calls, seconds = 1, 0.0
    while seconds < REPETITION_S / 4:  # find out how many calls make a repetition
        calls *= 2
        seconds = _seconds(part, calls)
    calls = max(1, round(calls * REPETITION_S / seconds))
    return statistics.median(_seconds(part, calls) / calls for _ in range(REPETITIONS)) * 1e6


def _seconds(part: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        part()
    return time.perf_counter() - start


def textbook_mlp(num_outputs: int) -> nn.Sequential:
    """64 x 64 tanh, as in most tutorials."""
    return nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, num_outputs)
    )


def policy_parts() -> Parts:
    """Actions for 8 observations."""
    from rlrun.config.schema import ModelConfig
    from rlrun.policies.numpy_policy import MLPPolicy
    from rlrun.policies.torch_policy import TorchPolicy

    observations = np.random.default_rng(0).normal(size=(WORK.num_envs, 4)).astype(np.float32)
    model = ModelConfig(hidden=WORK.hidden, share_layers=False)
    for name, policy_class in (("numpy", MLPPolicy), ("torch", TorchPolicy)):
        policy = policy_class(OBSERVATION_SPACE, ACTION_SPACE, model)
        noise = policy.sampler.draw(np.random.default_rng(0), 1, WORK.num_envs)[0]

        def act(policy: Any = policy, noise: Any = noise) -> Any:
            return policy.compute_actions(observations, noise=noise)

        yield f"act, 8 observations: rlrun, {name}", act

    actor, critic = textbook_mlp(2), textbook_mlp(1)

    def textbook() -> None:
        with torch.no_grad():
            tensor = torch.as_tensor(observations)
            distribution = torch.distributions.Categorical(logits=actor(tensor))
            actions = distribution.sample()
            distribution.log_prob(actions).numpy(), critic(tensor).numpy()

    yield "act, 8 observations: torch, Categorical and value", textbook


def single_parts() -> Parts:
    """The most probable action for one observation, and loading what chooses it."""
    from rlrun import PPOConfig, load_policy

    observation = np.random.default_rng(0).normal(size=4).astype(np.float32)
    made = PPOConfig().environment("CartPole-v1")
    algorithm = made.model(hidden=WORK.hidden, share_layers=False).build()
    policy = algorithm.acting_policy()
    yield "one action: rlrun", lambda: policy.compute_single_action(observation)
    actor = textbook_mlp(2)

    def textbook() -> int:
        with torch.no_grad():
            return int(actor(torch.as_tensor(observation)[None]).argmax())

    yield "one action: torch", textbook
    if importlib.util.find_spec("stable_baselines3"):
        from stable_baselines3 import PPO

        peer = PPO("MlpPolicy", "CartPole-v1", device="cpu")
        yield "one action: Stable-Baselines3", lambda: peer.predict(observation, deterministic=True)
    with tempfile.TemporaryDirectory() as folder:
        algorithm.save(f"{folder}/checkpoint")
        yield "load_policy: rlrun", lambda: load_policy(f"{folder}/checkpoint")
    algorithm.stop()


def env_parts() -> Parts:
    """One step of 8 CartPoles, resets of finished episodes included."""
    from rlrun.config.schema import EnvRunnersConfig, EnvSpec
    from rlrun.envs.vector_env import make_vector_env

    actions = np.random.default_rng(0).integers(0, 2, size=(1024, WORK.num_envs))
    spec = EnvSpec(use="CartPole-v1")
    for mode in ("sync", "vector_entry_point"):
        envs = make_vector_env(spec, WORK.num_envs, EnvRunnersConfig(gym_env_vectorize_mode=mode))
        yield f"step of 8 CartPoles: rlrun, {mode}", _stepper(envs, actions)
        envs.close()
    for mode in ("sync", "async", "vector_entry_point"):
        peers = gym.make_vec("CartPole-v1", WORK.num_envs, vectorization_mode=mode)
        peers.reset(seed=0)
        steps = _endless(actions)
        yield f"step of 8 CartPoles: gymnasium, {mode}", lambda p=peers, s=steps: p.step(next(s))
        peers.close()


def _stepper(envs: Any, actions: Any) -> Callable[[], None]:
    envs.reset(list(range(WORK.num_envs)))
    steps = _endless(actions)
    seeds = list(range(WORK.num_envs))

    def step() -> None:
        _, _, terminateds, truncateds, _ = envs.step(next(steps))
        done = terminateds | truncateds
        if done.any():
            envs.reset_envs(done, seeds)

    return step


def _endless(rows: Any) -> Iterator[Any]:
    while True:
        yield from rows


def gae_parts() -> Parts:
    """Advantages of 128 steps of 8 envs."""
    from rlrun.learning.returns import gae

    rng = np.random.default_rng(0)
    shape = (WORK.rollout_length, WORK.num_envs)
    rewards, values, next_values = rng.normal(size=(3, *shape)).astype(np.float32)
    terminateds = rng.random(shape) < 0.02
    truncateds = np.zeros(shape, dtype=bool)

    def ours() -> Any:
        return gae(rewards, values, next_values, terminateds, truncateds, WORK.gamma, WORK.lambda_)

    yield "GAE, 128 x 8: rlrun, numpy", ours
    columns = [torch.from_numpy(c) for c in (rewards, values, next_values)]
    not_done = torch.from_numpy(~terminateds).float()

    def textbook() -> None:
        advantages, last = torch.zeros(shape), torch.zeros(shape[1])
        for t in reversed(range(shape[0])):
            reward, value, next_value = (column[t] for column in columns)
            delta = reward + WORK.gamma * next_value * not_done[t] - value
            last = delta + WORK.gamma * WORK.lambda_ * not_done[t] * last
            advantages[t] = last

    yield "GAE, 128 x 8: a loop in torch", textbook


def update_parts() -> Parts:
    """4 epochs of 4 minibatches of 256 rows with PPO's loss."""
    from rlrun.algorithms.ppo import ppo_gradient, ppo_loss
    from rlrun.config.schema import LearnersConfig, ModelConfig, TrainingConfig
    from rlrun.data.sample_batch import SampleBatch
    from rlrun.learning.learner import Learner
    from rlrun.learning.returns import standardized_advantages
    from rlrun.policies.catalog import build_module

    columns = random_batch()
    names = tuple(name for name in columns if name not in ("obs", "new_obs"))
    training = TrainingConfig(lr=WORK.lr, grad_clip=WORK.grad_clip)
    arguments = {
        "clip_param": WORK.clip,
        "vf_loss_coeff": WORK.vf_coeff,
        "vf_clip_param": None,
        "entropy_coeff": WORK.entropy_coeff,
        "kl_coeff": 0.0,
    }
    for compiled in (False, True):
        module = build_module(OBSERVATION_SPACE, ACTION_SPACE, ModelConfig(hidden=WORK.hidden))
        settings = LearnersConfig(device="cpu", compile=compiled, num_threads=1)
        learner = Learner(module, training, settings)

        def update(learner: Any = learner) -> None:
            rows = learner.load(SampleBatch(columns), names)
            rows.prepare = standardized_advantages
            rng = np.random.default_rng(0)
            minibatches = rows.minibatches(WORK.num_epochs, WORK.minibatch_size, rng)
            learner.update(minibatches, ppo_loss, arguments, lr=WORK.lr, gradient=ppo_gradient)

        yield f"16 gradient steps: rlrun{', compiled' if compiled else ''}", update
    yield "16 gradient steps: torch, Categorical, Adam", _textbook_update(columns)


def sac_parts() -> Parts:
    """An update of SAC as in `SACWork`, and the matrix products in it, which are its bound."""
    from benchmarks.peers.rlrun_replay import sac_config

    work = SACWork()
    policy, critic = (3, *work.hidden, 2), (4, *work.hidden, 1)  # of Pendulum-v1
    rng = np.random.default_rng(0)
    products = [
        tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)
        for shapes in (
            *_forward(policy),  # of the next observations
            *(2 * _forward(critic)),  # the target's
            *(2 * (_forward(critic) + _to_weights(critic) + _to_inputs(critic)[1:])),
            *(_forward(policy) + _to_weights(policy) + _to_inputs(policy)[1:]),
            *(2 * (_forward(critic) + _to_inputs(critic))),  # on the way to the policy
        )
    ]
    outputs = [np.dot(a, b) for a, b in products]

    def multiply() -> None:
        for (a, b), out in zip(products, outputs, strict=True):
            np.dot(a, b, out=out)

    algorithm = sac_config().learners(device="cpu", num_threads=1).build()
    while not algorithm.train()["learners"]["default_policy"]["learner_stats"]["num_updates"]:
        pass
    (buffer,), (updater,) = (
        part.values() for part in (algorithm.replay.buffers, algorithm.replay.updaters)
    )
    batch = buffer.sample(work.minibatch_size, rng)
    yield "SAC, 256 transitions: matrix products alone", multiply
    yield "SAC, 256 transitions: an update", lambda: updater.update(batch, rng, 0)
    algorithm.stop()


Shapes = tuple[tuple[int, int], tuple[int, int]]


def _forward(sizes: tuple[int, ...]) -> list[Shapes]:
    """Shapes that are multiplied for the output of each layer."""
    rows = SACWork().minibatch_size
    return [((rows, i), (i, o)) for i, o in pairwise(sizes)]


def _to_weights(sizes: tuple[int, ...]) -> list[Shapes]:
    """For the gradient of its weights."""
    rows = SACWork().minibatch_size
    return [((i, rows), (rows, o)) for i, o in pairwise(sizes)]


def _to_inputs(sizes: tuple[int, ...]) -> list[Shapes]:
    """For the gradient of its input."""
    rows = SACWork().minibatch_size
    return [((rows, o), (o, i)) for i, o in pairwise(sizes)]


def random_batch() -> dict[str, Any]:
    """Columns of a train batch; learning from noise takes as long as from real data."""
    rng, rows = np.random.default_rng(0), WORK.batch_size
    noise = rng.normal(size=(11, rows)).astype(np.float32)
    return {
        "obs": noise[:4].T.copy(),
        "new_obs": noise[4:8].T.copy(),
        "actions": rng.integers(0, 2, rows),
        "action_logp": np.full(rows, np.log(0.5), np.float32),
        "advantages": noise[8],
        "value_targets": noise[9],
        "vf_preds": noise[10],
    }


def _textbook_update(columns: dict[str, Any]) -> Callable[[], None]:
    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    actor, critic = textbook_mlp(2), textbook_mlp(1)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=WORK.lr)

    def update() -> None:
        for _ in range(WORK.num_epochs):
            for index in torch.randperm(WORK.batch_size).split(WORK.minibatch_size):
                rows = {name: tensor[index] for name, tensor in tensors.items()}
                distribution = torch.distributions.Categorical(logits=actor(rows["obs"]))
                logp = distribution.log_prob(rows["actions"])
                values = critic(rows["obs"]).flatten()
                loss = _objective(logp, distribution.entropy(), values, rows)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, WORK.grad_clip)
                optimizer.step()

    return update


def _objective(logp: Any, entropy: Any, values: Any, rows: dict[str, Any]) -> Any:
    """PPO's clipped surrogate, value error and entropy bonus (Schulman et al. 2017, eq. 9)."""
    advantages = rows["advantages"]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = (logp - rows["action_logp"]).exp()
    clipped = ratio.clamp(1 - WORK.clip, 1 + WORK.clip)
    surrogate = torch.min(ratio * advantages, clipped * advantages).mean()
    value_error = 0.5 * (values - rows["value_targets"]).square().mean()
    return WORK.vf_coeff * value_error - surrogate - WORK.entropy_coeff * entropy.mean()


def replay_parts() -> Parts:
    """Prioritised replay out of a million transitions, 256 at a time."""
    from rlrun.data.sample_batch import SampleBatch
    from rlrun.replay.prioritized_replay_buffer import PrioritizedReplayBuffer

    rng, length = np.random.default_rng(0), 10_000
    buffer = PrioritizedReplayBuffer(1_000_000)
    for episode in range(buffer.capacity // length):
        observations = rng.normal(size=(length + 1, 4)).astype(np.float32)
        columns = {
            "obs": observations[:-1],
            "new_obs": observations[1:],
            "actions": rng.integers(0, 2, length),
            "rewards": np.ones(length, np.float32),
            **dict.fromkeys(("terminateds", "truncateds"), np.zeros(length, np.bool_)),
            **dict.fromkeys(("eps_id", "unroll_id"), np.full(length, episode)),
            **dict.fromkeys(("env_id", "agent_index"), np.zeros(length, np.int64)),
            "t": np.arange(length),
        }
        buffer.add(SampleBatch.from_columns(columns))
    errors = rng.random(256)
    ids = buffer.sample(256, rng, beta=0.4)["item_ids"]
    yield "256 of 1M transitions: sample", lambda: buffer.sample(256, rng, beta=0.4)
    yield "256 of 1M transitions: new priorities", lambda: buffer.update_priorities(ids, errors)


def ray_parts() -> Parts:
    """Calls to idle actors, and the weights on their way to two of them."""
    import ray

    class Actor:
        def ping(self, weights: Any = None) -> int:
            return 0 if weights is None else len(weights)

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    actors = [ray.remote(num_cpus=0.5)(Actor).remote() for _ in range(2)]
    ray.get([actor.ping.remote() for actor in actors])
    weights = np.zeros(9_155, np.float32)  # two 64 x 64 MLPs for CartPole

    def broadcast() -> None:
        reference = ray.put(weights)
        ray.get([actor.ping.remote(reference) for actor in actors])

    yield "Ray: round trip to one actor", lambda: ray.get(actors[0].ping.remote())
    yield "Ray: round trip to two at once", lambda: ray.get([a.ping.remote() for a in actors])
    yield "Ray: weights (36 kB) to two actors and back", broadcast
    ray.shutdown()


GROUPS: dict[str, Callable[[], Parts]] = {
    "policy": policy_parts,
    "single": single_parts,
    "env": env_parts,
    "gae": gae_parts,
    "update": update_parts,
    "sac": sac_parts,
    "replay": replay_parts,
    "ray": ray_parts,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", choices=list(GROUPS), required=True)
    torch.set_num_threads(1)
    group = GROUPS[parser.parse_args().group]
    times = {name: microseconds(part) for name, part in group()}
    driver.report(us=times, versions=driver.versions("torch", "ray", "gymnasium", "numpy"))


if __name__ == "__main__":
    main()
