"""rlrun's PPO on a Ray cluster whose nodes are all on this machine: what one more runner costs.

Every env step sleeps, so that a few cores hold many runners, and every runner samples the same
number of env steps in an iteration. Numbers are medians over the iterations after the first ones,
bytes their mean. What moves is read where it moves: the TCP connections of this process (`ss`) and
the object stores of all nodes.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import ray
from ray._private.internal_api import node_stats
from ray.actor import ActorHandle
from ray.cluster_utils import Cluster

from benchmarks.memory import tree_pss_mb
from benchmarks.peers import driver
from rlrun import PPO, PPOConfig

WARM_UP = 3
"""Iterations that are not counted."""
RAY_VARIABLES = {
    "RAY_worker_niceness": "0",  # as for a Ray that rlrun starts
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True)
class Moved:
    """Bytes since the start."""

    sent: int
    """By this process, in messages."""
    received: int
    stored: int
    """Created in the object stores of all nodes, copies included."""

    def since(self, before: "Moved", iterations: int) -> dict[str, float]:
        """Bytes of one iteration."""
        now, then = asdict(self), asdict(before)
        return {name: (now[name] - then[name]) / iterations for name in now}


@dataclass(frozen=True)
class Sampled:
    """Seconds of one synchronous round of sampling in the driver, its joined batch included."""

    wall_s: float
    main_thread_s: float
    ray_s: float
    """The part of it that Ray's own functions take."""
    process_s: float
    """Processor time of all threads; Ray's send and receive messages."""
    num_bytes: int
    """Of the columns of the batch."""


class RayTime:
    """Processor time that this thread spends in the functions of Ray that sampling calls."""

    calls = ((ray, "wait"), (ray, "get"), (ActorHandle, "_actor_method_call"))

    def __init__(self) -> None:
        self.spent_s = 0.0
        for owner, name in self.calls:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            before = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent_s += time.thread_time() - before

        return timed


class MeasuredPPO(PPO):
    """PPO that notes what its sampling takes."""

    def setup(self) -> None:
        super().setup()
        self.sampled: list[Sampled] = []
        self._ray = RayTime()

    def sample(self) -> Any:
        before = self._clocks()
        batch = super().sample()
        spent = [now - then for now, then in zip(self._clocks(), before, strict=True)]
        self.sampled.append(Sampled(*spent, num_bytes=batch.size_bytes()))
        return batch

    def _clocks(self) -> tuple[float, ...]:
        """The seconds of a `Sampled` so far."""
        spent_s = self._ray.spent_s
        return time.perf_counter(), time.thread_time(), spent_s, time.process_time()


def algorithm(task: argparse.Namespace, address: str) -> MeasuredPPO:
    """PPO on the cluster, its runners built."""
    batch_size = task.runners * task.steps
    config = (
        PPOConfig()
        .environment("benchmarks.environments:SleepingEnv")
        .env_runners(
            num_env_runners=task.runners,
            num_envs_per_env_runner=1,
            rollout_fragment_length=task.steps,
        )
        .training(train_batch_size=batch_size, minibatch_size=batch_size, num_epochs=1)
        .learners(device="cpu", num_threads=1)
        .fault_tolerance(env_runner_start_timeout_s=600)
        .debugging(seed=task.seed)
    )
    return MeasuredPPO(config, address=address)


def moved() -> Moved:
    """What has moved until now."""
    sockets = subprocess.run(
        ["ss", "-tinpHO"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    ours = [line for line in sockets if f"pid={os.getpid()}," in line]
    sent, received = (
        sum(int(found[1]) for line in ours if (found := re.search(rf"\b{name}:(\d+)", line)))
        for name in ("bytes_sent", "bytes_received")
    )
    stores = [
        node_stats(node["NodeManagerAddress"], node["NodeManagerPort"]).store_stats
        for node in ray.nodes()
    ]
    return Moved(sent, received, sum(store.cumulative_created_bytes for store in stores))


def measure(task: argparse.Namespace, address: str) -> dict[str, Any]:
    """Trains, and returns what an iteration takes."""
    trained = algorithm(task, address)
    for _ in range(WARM_UP):
        trained.train()
    del trained.sampled[:]
    before, results, iteration_s = moved(), list[dict[str, Any]](), list[float]()
    for _ in range(task.iterations):
        start = time.perf_counter()
        results.append(trained.train())
        iteration_s.append(time.perf_counter() - start)
    bytes_moved = moved().since(before, task.iterations)
    pss = tree_pss_mb(os.getpid())
    runners_pss = sum(size for name, size in pss.items() if name.startswith("ray::RunnerHost"))
    weights_bytes = sum(
        one.numel() * one.element_size() for one in trained.learner.module.parameters()
    )
    sampled, per_runner = trained.sampled, 1e3 / task.runners
    trained.stop()
    spent = [asdict(one) for one in sampled]
    medians = {name: statistics.median(one[name] for one in spent) for name in spent[0]}
    return {
        "env_steps_per_s": results[0]["env_steps_this_iter"] / statistics.median(iteration_s),
        "iteration_ms": 1e3 * statistics.median(iteration_s),
        "sampling_ms": 1e3 * medians["wall_s"],
        "learning_ms": 1e3 * statistics.median(one["timers"]["learn_s"] for one in results),
        "main_thread_ms_per_runner": per_runner * medians["main_thread_s"],
        "ray_ms_per_runner": per_runner * medians["ray_s"],
        "process_ms_per_runner": per_runner * medians["process_s"],
        "runner_pss_mb": runners_pss / task.runners,
        "bytes": {
            **bytes_moved,
            "moved": sum(bytes_moved.values()),
            "weights": weights_bytes,
            "samples": sampled[-1].num_bytes,
            "once": weights_bytes * min(task.runners, task.nodes) + sampled[-1].num_bytes,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runners", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="of a runner in an iteration")
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    task = parser.parse_args()
    os.environ.update(RAY_VARIABLES)
    node = {"num_cpus": 1, "object_store_memory": 256 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(1, task.nodes):
            cluster.add_node(**node)
        result = measure(task, cluster.address)
    finally:
        ray.shutdown()
        session = cluster.head_node.get_session_dir_path()
        cluster.shutdown()
        shutil.rmtree(session, ignore_errors=True)
    driver.report(**result, versions=driver.versions("rlrun", "torch", "ray", "gymnasium", "numpy"))


if __name__ == "__main__":
    main()
