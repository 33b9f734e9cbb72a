"""Initial weights: policies of a new run that begin with the weights of another run.

Owns which checkpoint each policy begins with, which parts of it are taken, and whether these fit.
Only arrays, numbers and plain settings of the other run are read; the code that it names is never
imported. It must not know how policies are made, nor what their statistics mean.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rlrun.checkpoint.checkpoint import Checkpoint, Checkpointed, CheckpointError, first_difference
from rlrun.checkpoint.checkpoint_folder import CHECKPOINTS, LATEST, checkpoint_at
from rlrun.config.dump import dump_yaml, flow, to_plain
from rlrun.config.policies import policy_settings
from rlrun.config.problems import ConfigError, Origin, Problem
from rlrun.config.registry import no_such, similar_folder
from rlrun.config.schema import ExperimentConfig, ModelConfig, PolicySource
from rlrun.config.yaml_tree import parse_yaml
from rlrun.data.sample_batch import DEFAULT_POLICY_ID

_MAY_DIFFER = {
    *("model.log_std_init", "model.attention_init_gru_gate_bias"),  # initial values alone
    *("model.max_seq_len", "model.conv_dtype"),
}
"""Settings that may differ: the same weights are still the same policy."""


@dataclass(frozen=True)
class Source:
    """A policy in a checkpoint of another run.

    Attributes:
        key: address of the setting that names it.
        policy_id: its id in that run.
    """

    key: str
    checkpoint: Checkpoint
    policy_id: str

    def misfit(self, message: str) -> ConfigError:
        """The error of a policy that cannot be taken over."""
        return _error(self.key, f"{self.checkpoint.path}: {message}")


Sources = dict[str, Source]
"""Policy id -> its source, for policies that `initial_weights` names."""


def read_sources(experiment: ExperimentConfig) -> Sources:
    """The sources that an experiment names.

    Raises:
        ConfigError: a policy does not exist, here or there, or there is no intact checkpoint.
    """
    given, known = experiment.initial_weights, [*policy_settings(experiment, DEFAULT_POLICY_ID)]
    if given is None:
        return {}
    sources: Sources = {}
    checkpoints: dict[str, Checkpoint] = {}
    by_policy = given if isinstance(given, dict) else dict.fromkeys(known, given)
    for policy_id, named in by_policy.items():
        key = f"initial_weights.{policy_id}" if by_policy is given else "initial_weights"
        if policy_id not in known:
            raise _error(key, no_such("policy", policy_id, known))
        wanted = PolicySource.model_validate(named)
        if wanted.path not in checkpoints:
            checkpoints[wanted.path] = _read(key, Path(wanted.path))
        source = Source(key, checkpoints[wanted.path], wanted.policy or policy_id)
        ids = source.checkpoint.state["policies"]["ids"]
        if source.policy_id not in ids:
            other = f"{{{policy_id}: {{path: {wanted.path}, policy: {ids[0]}}}}} takes another"
            raise source.misfit(f"{no_such('policy', source.policy_id, ids)}; {other}")
        sources[policy_id] = source
    return sources


def with_links_followed(experiment: ExperimentConfig) -> ExperimentConfig:
    """The experiment with links in `initial_weights` resolved: ``latest`` may soon be this run."""
    return _with_paths(experiment, _followed)


def with_paths_from(experiment: ExperimentConfig, folder: str) -> ExperimentConfig:
    """The experiment with paths in `initial_weights` taken relative to ``folder``."""
    if folder == os.getcwd():
        return experiment
    return _with_paths(experiment, partial(os.path.join, folder))


def _with_paths(experiment: ExperimentConfig, change: Callable[[str], str]) -> ExperimentConfig:
    def changed(given: Any) -> Any:
        if isinstance(given, dict) and "path" in given:
            return {**given, "path": change(given["path"])}
        if isinstance(given, dict):
            return {policy_id: changed(own) for policy_id, own in given.items()}
        return None if given is None else change(given)

    update = {"initial_weights": changed(experiment.initial_weights)}
    return experiment.model_copy(update=update)


def _followed(given: str) -> str:
    """The path of a run folder or checkpoint, with links resolved."""
    whole = os.path.realpath(_run_or_checkpoint(Path(given)))
    return given if whole == os.path.abspath(given) else os.path.relpath(whole)


def _run_or_checkpoint(path: Path) -> Path:
    """The path, or the latest run if the path is ``runs/<name>``."""
    return path / LATEST if (path / LATEST / CHECKPOINTS).is_dir() else path


def _read(key: str, path: Path) -> Checkpoint:
    if not path.exists():
        raise _error(key, f"there is no {path}{similar_folder(path, path.parent)}")
    try:
        return checkpoint_at(_run_or_checkpoint(path), replay=False)
    except CheckpointError as error:
        raise _error(key, str(error)) from error


def _error(key: str, message: str) -> ConfigError:
    return ConfigError([Problem(Origin(""), key, message)])


def begin_with(sources: Sources, algorithm: Checkpointed) -> None:
    """Load the weights and statistics of policies from their sources; nothing else is taken.

    Raises:
        ConfigError: a source does not fit its policy.
    """
    weights = algorithm.get_weights() if sources else {}
    for policy_id, source in sources.items():
        there, here = f"{source.policy_id}/", f"{policy_id}/"
        own = {name: array for name, array in weights.items() if name.startswith(here)}
        found = {
            here + name.removeprefix(there): array
            for name, array in source.checkpoint.weights.items()
            if name.startswith(there)
        }
        if not algorithm.policies[policy_id].train:  # without SAC's critics, for example
            parts = {name.partition(".")[0] for name in own}
            found = {name: a for name, a in found.items() if name.partition(".")[0] in parts}
        weights.update(found)
        try:
            _require_fit(source, policy_id, first_difference(own, found), algorithm.config)
            _take_state(source, policy_id, algorithm)
        except ConfigError:
            raise
        except Exception as error:  # any, as the state may hold anything
            reason = f"{type(error).__name__}: {error}"
            raise source.misfit(f"its state does not fit: {reason}") from error
    if sources:
        algorithm.set_weights(weights)
        algorithm.policies.weights_version = 0  # no update of this run has made them


def _require_fit(
    source: Source, policy_id: str, difference: str | None, experiment: ExperimentConfig
) -> None:
    """Raise ConfigError if weights differ, or settings that determine their meaning."""
    checkpoint, reasons = source.checkpoint, [] if difference is None else [difference]
    if reasons and checkpoint.algorithm != experiment.algorithm:
        reasons.append(f"it is of {checkpoint.algorithm}")
    added = checkpoint.state["policies"]["added"].get(source.policy_id, {})
    there = _settings(checkpoint.config_yaml, added.get("like", source.policy_id))
    here = _settings(dump_yaml(experiment), policy_id)
    reasons += [
        f"{name} is {flow(there.get(name))} there and {flow(here.get(name))} here"
        for name in {**here, **there}
        if there.get(name) != here.get(name) and (difference or name not in _MAY_DIFFER)
    ]
    if reasons:
        raise source.misfit(f"does not fit this experiment: {'; '.join(reasons)}")


def _settings(config_yaml: str, policy_id: str) -> dict[str, Any]:
    """The settings that determine what a policy does with its weights, as plain values."""
    plain = parse_yaml(config_yaml, "").plain()
    own = plain["multi_agent"]["policies"].get(policy_id) or {"use": plain.get("policy")}
    # A setting that an earlier version did not have has its default.
    model = {**to_plain(ModelConfig()), **plain["model"], **own.get("model", {})}
    use = own["use"]
    return {
        **{f"model.{name}": value for name, value in model.items()},
        "policy.use": use["use"] if isinstance(use, dict) else use,
        "env_runners.observation_filter": plain["env_runners"]["observation_filter"],
    }


def _take_state(source: Source, policy_id: str, algorithm: Checkpointed) -> None:
    """Load connectors' statistics, networks' integer buffers, and weights of custom policies."""
    policies, state = algorithm.policies, source.checkpoint.state["policies"]
    statistics = state["connectors"][source.policy_id]
    if any(statistics.values()):
        if not algorithm.config.env_runners.update_worker_filter_stats:
            message = "initial_weights has filter statistics, which env runners would not receive"
            raise _error("env_runners.update_worker_filter_stats", f"{message}; set it to true")
        central = policies.connectors
        central.set_state({**central.get_state(), policy_id: statistics})
    if policy_id in policies.custom:
        policies.custom[policy_id].set_weights(state["scratch"][source.policy_id]["weights"])
    elif buffers := state["learners"][source.policy_id].get("buffers"):
        policies.learners[policy_id].set_state({"kind": None, "buffers": buffers})
