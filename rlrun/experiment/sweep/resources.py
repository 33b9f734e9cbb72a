"""The resources of a trial, and whether a machine or cluster has them.

Owns the arithmetic. It must not know Ray Tune.

A trial with env runners reserves a bundle for its own process and one for each runner, all at once.
Its own process is idle while the runners sample and takes no CPU, as in `rlrun train`. A trial
without runners takes one CPU.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rlrun.actors.ray_runtime import (
    ResourceError,
    Resources,
    local_resources,
    preflight,
    reserving,
)
from rlrun.config.policies import evaluation_runners, num_networks
from rlrun.config.schema import ExperimentConfig

Bundle = dict[str, float]


def bundles_of(experiment: ExperimentConfig) -> list[Bundle]:
    """Ray resources of the trial's process, of each env runner, and of each learner."""
    settings, learners = experiment.env_runners, experiment.learners
    own = {"CPU": not settings.num_env_runners, "GPU": learners.device.startswith("cuda")}
    learner = {"CPU": learners.num_cpus_per_learner, "GPU": learners.num_gpus_per_learner}
    all_processes: list[Mapping[str, float]] = [own]
    for runners in (settings, evaluation_runners(experiment)):
        runner = {
            "CPU": runners.cpus_per_env_runner,
            "GPU": runners.num_gpus_per_env_runner,
            **runners.custom_resources_per_env_runner,
        }
        all_processes += [runner] * runners.num_env_runners
    all_processes += [learner] * (learners.num_learners * num_networks(experiment))
    bundles = [
        {name: float(amount) for name, amount in process.items() if amount}
        for process in all_processes
    ]
    return bundles if any(bundles) else [{"CPU": 1.0}]


@dataclass(frozen=True)
class Capacity:
    """The resources for trials."""

    total: Resources
    nodes: tuple[Mapping[str, float], ...]
    """Resources of each machine, by Ray's names."""
    where: str
    """Name in messages: "this machine", or the cluster."""


def check_fits(experiments: Iterable[ExperimentConfig], capacity: Capacity) -> None:
    """Raise if a trial needs more than is available.

    Raises:
        ResourceError: with the arithmetic and a setting that fits.
    """
    problems: dict[str, None] = {}
    for experiment in experiments:
        try:
            preflight(
                reserving(experiment.env_runners, 1.0),  # as the bundles do
                capacity.total,
                capacity.where,
                experiment.learners,
                reserving(evaluation_runners(experiment), 1.0),
                num_networks(experiment),
            )
        except ResourceError as error:
            problems[f"a trial: {error}"] = None
            continue
        for bundle in bundles_of(experiment):
            if not any(_holds(node, bundle) for node in capacity.nodes):
                text = ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())
                kind = "an env runner" if len(bundles_of(experiment)) > 1 else "a trial"
                most = "; ".join(
                    f"{node.get('CPU', 0.0):g} CPU, {node.get('GPU', 0.0):g} GPU"
                    for node in capacity.nodes
                )
                problems[f"{kind} needs {text} on one machine; available: {most}"] = None
    if problems:
        raise ResourceError("\n".join(problems))


def trials_at_once(experiments: Iterable[ExperimentConfig], total: Resources) -> int:
    """The number of trials that can run at the same time, if they are those that need least."""
    there = {"CPU": total.cpus, "GPU": total.gpus, **total.custom}
    fitting = []
    for experiment in experiments:
        needed = Counter[str]()
        for bundle in bundles_of(experiment):
            needed.update(bundle)
        fitting.append(min(there.get(name, 0.0) // amount for name, amount in needed.items()))
    return max(1, int(max(fitting)))


def _holds(node: Mapping[str, float], bundle: Bundle) -> bool:
    return all(node.get(name, 0.0) >= amount for name, amount in bundle.items())


def local_capacity() -> Capacity:
    """The resources that a Ray started on this machine will have."""
    total = local_resources()
    cpus, gpus = max(1.0, float(int(total.cpus))), float(int(total.gpus))
    return Capacity(total, ({"CPU": cpus, "GPU": gpus, **total.custom},), "this machine")
