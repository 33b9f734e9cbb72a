"""Milliseconds of a gradient step or update on a GPU, beside plain PyTorch on the same GPU.

Three kinds: SAC and PPO on networks and rows of HalfCheetah's size, and PPO on stacks of Atari
frames. rlrun runs kernel by kernel and with CUDA graphs, on images in bfloat16 as well. All are in
this process, in turns. Needs a GPU, and none of the peers.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks import summary
from benchmarks.peers.eager_updates import GaussianAgent, ImageAgent, PPOUpdates, SACUpdates
from benchmarks.record import Record
from rlrun.algorithms.ppo import PPOTraining, ppo_loss
from rlrun.algorithms.sac import SACTraining, SACUpdater
from rlrun.config.schema import LearnersConfig, ModelConfig
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.learner import Learner
from rlrun.learning.returns import standardized_advantages
from rlrun.policies.catalog import build_module
from rlrun.policies.soft_actor_critic import SACPolicyNetwork, TwinQNetwork

BENCHMARK = "gpu_work"
DEVICE = "cuda"
NUM_OBS, NUM_ACTIONS = 17, 6  # HalfCheetah-v5
OBSERVATIONS = gym.spaces.Box(-np.inf, np.inf, (NUM_OBS,), np.float32)
ACTIONS = gym.spaces.Box(-1.0, 1.0, (NUM_ACTIONS,), np.float32)
IMAGES = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
BUTTONS = gym.spaces.Discrete(6)
PYTORCH = "plain PyTorch"
COEFFICIENTS = {
    **{"clip_param": 0.2, "vf_loss_coeff": 0.5, "vf_clip_param": None},
    **{"entropy_coeff": 0.01, "kl_coeff": 0.0},
}
Work = tuple[Callable[[], Any], int]
"""What is timed, and the updates that it makes."""


def learner(module: Any, training: Any, graphs: bool) -> Learner:
    """A learner on the GPU, with CUDA graphs or without."""
    settings = LearnersConfig(device=DEVICE, cuda_graphs=graphs)
    return Learner(module, training, settings)


def sac_work(rows: int = 256) -> Iterator[tuple[str, Work]]:
    """SAC on HalfCheetah's transitions, networks of 256 x 256."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((rows, 2 * NUM_OBS + 1), dtype=np.float32)
    columns = {
        col.OBS: normal[:, :NUM_OBS].copy(),
        col.NEXT_OBS: normal[:, NUM_OBS:-1].copy(),
        col.REWARDS: normal[:, -1].copy(),
        col.ACTIONS: rng.uniform(-1, 1, (rows, NUM_ACTIONS)).astype(np.float32),
        col.TERMINATEDS: np.zeros(rows, bool),
        col.DISCOUNTS: np.full(rows, 0.99, np.float32),
    }
    peer = SACUpdates(NUM_OBS, NUM_ACTIONS, (256, 256), DEVICE)
    floats = {name: column.astype(np.float32) for name, column in columns.items()}
    yield PYTORCH, (lambda: peer.update(floats), 1)
    model = ModelConfig(hidden=(256, 256), activation="relu")
    for name, graphs in (("rlrun, kernel by kernel", False), ("rlrun, CUDA graphs", True)):
        training = SACTraining(critic_lr=1e-3)
        networks = [TwinQNetwork(OBSERVATIONS, ACTIONS, model) for _ in range(2)]
        policy = learner(SACPolicyNetwork(OBSERVATIONS, ACTIONS, model), training, graphs)
        critic = learner(networks[0], training, graphs)
        updater = SACUpdater(policy, critic, networks[1], training, ACTIONS)
        yield name, (partial(updater.update, SampleBatch(columns), rng, 0), 1)


def ppo_work(rows: int = 2048, size: int = 64) -> Iterator[tuple[str, Work]]:
    """PPO on HalfCheetah's steps in minibatches, networks of 64 x 64."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((rows + 1, NUM_OBS), dtype=np.float32)
    actions = rng.standard_normal((rows, NUM_ACTIONS), dtype=np.float32)
    yield from _ppo((OBSERVATIONS, ACTIONS), obs, actions, size, ModelConfig(), ("float32",))


def image_work(rows: int = 32_768, size: int = 16_384) -> Iterator[tuple[str, Work]]:
    """PPO on stacks of four frames in minibatches, the Nature CNN."""
    rng = np.random.default_rng(0)
    obs = rng.integers(0, 256, (rows + 1, 4, 84, 84), np.uint8)
    actions = rng.integers(0, 6, rows)
    kinds = ("float32", "bfloat16")
    yield from _ppo((IMAGES, BUTTONS), obs, actions, size, ModelConfig(activation="relu"), kinds)


def _ppo(
    spaces: tuple[gym.Space[Any], gym.Space[Any]],
    obs: Any,
    actions: Any,
    size: int,
    model: ModelConfig,
    dtypes: tuple[str, ...],
) -> Iterator[tuple[str, Work]]:
    """PPO's epochs over these observations, of which the last only follows."""
    rows, rng = len(actions), np.random.default_rng(1)
    floats = rng.standard_normal((4, rows), dtype=np.float32)
    names = ("logp", "advantages", "returns", "values")
    batch = {"obs": obs[:-1], "actions": actions, **dict(zip(names, floats, strict=True))}
    images = spaces[0] is IMAGES
    agent = ImageAgent(6) if images else GaussianAgent(NUM_OBS, NUM_ACTIONS, (64, 64))
    peer = PPOUpdates(agent, batch, size, 2.5e-4, DEVICE)
    yield PYTORCH, (peer.epoch, rows // size)
    sampled = SampleBatch({col.ACTIONS: actions})
    sampled.set_shared(col.OBS, obs, np.arange(rows))
    sampled.set_shared(col.NEXT_OBS, obs, np.arange(1, rows + 1))
    for dtype in dtypes:
        for name, graphs in (("rlrun, kernel by kernel", False), ("rlrun, CUDA graphs", True)):
            chosen = model.model_copy(update={"conv_dtype": dtype})
            training = PPOTraining(grad_clip=0.5)
            own = learner(build_module(*spaces, chosen), training, graphs)
            loaded = own.load(sampled, (col.ACTIONS,))
            named = (col.ACTION_LOGP, col.ADVANTAGES, col.VALUE_TARGETS)
            for column, values in zip(named, floats[:3], strict=True):
                loaded.add(column, values)
            loaded.prepare = standardized_advantages

            def epoch(own: Learner = own, loaded: Any = loaded) -> None:
                minibatches = loaded.minibatches(1, size, rng)
                own.update(minibatches, ppo_loss, COEFFICIENTS, lr=2.5e-4)

            half = ", bfloat16" if dtype == "bfloat16" else ""
            yield f"{name}{half}", (epoch, rows // size)


KINDS = {
    "SAC, 256 transitions": sac_work,
    "PPO, minibatch of 64": ppo_work,
    "PPO, minibatch of 16,384 images": image_work,
}


def milliseconds(call: Callable[[], Any], updates: int, seconds: float) -> float:
    """Of one update; the median of calls for so long, each until the GPU is idle."""
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(repeats := max(1, 20 // updates)):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / (repeats * updates))
    return statistics.median(times) * 1e3


def table(record: Record) -> str:
    """A row a contender, with its ratio to plain PyTorch at the same work."""
    rows = []
    for contender in record.contenders:
        kind, _, _ = contender.rpartition(": ")
        values, peer = (record.values(x, "ms") for x in (contender, f"{kind}: {PYTORCH}"))
        rows.append([contender, summary.cell(values, 3), summary.ratio_cell(peer, values)])
    header = ["", "ms an update", "x times as fast as plain PyTorch"]
    gpu = f"{record.settings['gpu']}, torch {record.settings['torch']}."
    return f"{summary.markdown_table(header, rows)}\n\n- {gpu}\n{summary.footer(record)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--out", type=Path, help=f"default benchmarks/results/{BENCHMARK}.json")
    options = parser.parse_args()
    settings = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    settings["seconds"] = options.seconds
    record = Record.open(BENCHMARK, settings, path=options.out, resume=False)
    for kind in options.kinds:
        contenders = dict(KINDS[kind]())
        for round_ in range(options.rounds + 1):  # the first one warms up
            for name, (call, updates) in contenders.items():
                ms = milliseconds(call, updates, options.seconds)
                if round_:
                    load = os.getloadavg()[0]
                    record.add(f"{kind}: {name}", round_, load=load, result={"ms": ms})
    print(table(record))


if __name__ == "__main__":
    main()
