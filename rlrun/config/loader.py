"""Loads a file and a command line as a checked experiment.

Owns: the order of the steps (read, merge, validate, check), and collecting the problems of all of
them. Must not know: how a step works; see layers.py, validate.py and the modules of checks.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

from rlrun.config import checks, layers
from rlrun.config.code_checks import check_code
from rlrun.config.env_checks import check_environment
from rlrun.config.memory_checks import check_memory
from rlrun.config.problems import COMMAND_LINE, DEFAULT, ConfigError, Finding, Origin, Path, Problem
from rlrun.config.registry import NO_MODULE, experiment_file
from rlrun.config.rllib_file import is_rllib, translate
from rlrun.config.schema import ExperimentConfig
from rlrun.config.sweep import check_sweep
from rlrun.config.translation import Translation
from rlrun.config.trust import is_run_file, require_trust
from rlrun.config.validate import salvage, validate
from rlrun.config.warnings import find_warnings
from rlrun.config.yaml_tree import Node, from_plain
from rlrun.config.zoo_file import is_zoo, translate_zoo


@dataclass(frozen=True)
class Loaded:
    """An experiment, the origins of its values, and warnings."""

    experiment: ExperimentConfig
    tree: Node
    warnings: tuple[Problem, ...]
    translation: Translation | None = None
    """The translation of a file in another library's form; None for a file of rlrun's."""

    def origin(self, path: Path) -> Origin:
        """Origin of the value at `path`; DEFAULT if it was not written."""
        node = self.tree
        for part in path:
            below = node.child(part)
            if below is None:
                # A value in short form (`env: CartPole-v1`) stands for the mapping.
                return node.origin if isinstance(node.value, str) else DEFAULT
            node = below
        return node.origin

    def placed(self, error: ConfigError) -> ConfigError:
        """An error found while building the experiment, with each problem at its key's place."""
        origins = [self.origin(tuple(problem.key.split("."))) for problem in error.problems]
        return ConfigError(
            problem if origin == DEFAULT else replace(problem, origin=origin)
            for problem, origin in zip(error.problems, origins, strict=True)
        )


def load_experiment(
    path: str | os.PathLike[str] | None, overrides: Sequence[str] = (), *, trust: bool = False
) -> ExperimentConfig:
    """The experiment of a YAML file, checked as ``rlrun check`` does it.

    Args:
        path: the file, or the name of a shipped one (``ppo_cartpole``); None where the overrides
            name algorithm and env.
        overrides: ``"training.lr=1e-3"``: values in YAML, laid over the file in their order.
        trust: import the code that the file of a run folder names, even if it is not signed.

    Raises:
        ConfigError: with all problems, one line each.
        TrustError: the file of a run folder names code that this user has not signed.
    """
    return load(path, overrides, trust=trust).experiment


def load(
    path: str | os.PathLike[str] | None, overrides: Sequence[str] = (), *, trust: bool = False
) -> Loaded:
    """Like `load_experiment`, with the origins of the values and the warnings."""
    if path is None:
        tree, stem = Node({}, COMMAND_LINE), ""
    else:
        file = experiment_file(FilePath(path))
        tree, stem = layers.read_file(file), file.stem
        if is_run_file(file):
            if not trust:
                require_trust(file, tree.plain())
            return _load_run(tree, file, overrides)
        if is_rllib(tree) or is_zoo(tree):
            return _load_translated(tree, stem, layers.override_of("name", overrides), overrides)
    return load_tree(tree, stem, overrides)


def load_to_act(
    path: str | os.PathLike[str], replacing: Mapping[str, Any], *, trust: bool
) -> ExperimentConfig:
    """The experiment of a checkpoint as far as its policies act by it, and no further.

    Code that only samples, learns or reports is left out, so it is neither imported nor to be
    trusted.

    Args:
        path, trust: see `load_experiment`.
        replacing: sections and settings merged over the file's, `env` among them.
    """
    file = FilePath(path)
    tree = whole = layers.read_file(file)
    for address in _NOT_TO_ACT:
        tree = layers.without(tree, address)
    tree = layers.merge(tree, from_plain(replacing, DEFAULT))
    if not trust:
        require_trust(file, whole.plain(), tree.plain())
    return _load_run(tree, file, ()).experiment


_OF_ENVIRONMENTS = ("env_wrappers", "gym_env_vectorize_mode", "env_runner_cls", "sample_collector")
_OF_LEARNERS = ("loss", "learner_connectors")
_NOT_TO_ACT = (
    *("env", "callbacks", "report", "sweep", "fault_tolerance"),
    *("evaluation.env", "evaluation.agents"),
    *("multi_agent.agents", "multi_agent.policies_to_train", "multi_agent.policies.*.spaces_of"),
    *(f"{at}env_runners.{key}" for at in ("", "evaluation.") for key in _OF_ENVIRONMENTS),
    *(f"{at}training.{key}" for at in ("", "multi_agent.policies.*.") for key in _OF_LEARNERS),
)
"""Addresses of settings that policies do not act by, and that name code or the form of an
environment."""


def load_translations(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> list[Loaded]:
    """All experiments of another library's file, or the one that ``name=`` chooses.

    Raises:
        ConfigError: with the problems of all.
    """
    tree, stem = layers.read_file(FilePath(path)), FilePath(path).stem
    if not (is_rllib(tree) or is_zoo(tree)):
        message = "expected a file of RLlib, {name: {env: ..., run: ..., config: ...}}, or of "
        message += "rl-baselines3-zoo, {env: {n_timesteps: ..., ...}}"
        raise ConfigError([Problem(tree.origin, "", message)])
    chosen = layers.override_of("name", overrides)
    found: list[Loaded] = []
    problems: list[Problem] = []
    for name in [*tree.value] if chosen is None else [chosen]:
        try:
            found.append(_load_translated(tree, stem, name, overrides))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return found


def _load_translated(tree: Node, stem: str, name: str | None, overrides: Sequence[str]) -> Loaded:
    """Another library's experiment, with one warning about keys without effect."""
    if is_rllib(tree):
        translation = translate(tree, name)
    else:
        algorithm = layers.override_of("algorithm", overrides) or stem.upper()
        translation = translate_zoo(tree, algorithm, name)
    # An override that chooses an entry, such as ALE/Pong-v5, does not name the run.
    rest = [text for text in overrides if text != f"name={translation.name}"]
    loaded = load_tree(translation.tree, translation.name, rest)
    keys = ", ".join(found.key.rpartition(".")[2] for found in translation.without_effect)
    message = f"translated from {translation.library}'s form; `rlrun import` shows the result"
    message += f"; without effect: {keys}" if keys else ""
    own = Problem(translation.tree.origin, "", message)
    return replace(loaded, warnings=(own, *loaded.warnings), translation=translation)


def _load_run(tree: Node, file: FilePath, overrides: Sequence[str]) -> Loaded:
    """The experiment in a run folder; errors of missing code say where the run was started."""
    try:
        return load_tree(tree, file.stem, overrides)
    except ConfigError as error:
        began = _began_in(file)
        if began is None or os.path.realpath(began) == os.getcwd():
            raise
        hint = f" in {os.getcwd()}, nor installed: the run was started in {began}; start it there"
        raise ConfigError(
            replace(problem, message=problem.message + hint)
            if problem.message.startswith(NO_MODULE)
            else problem
            for problem in error.problems
        ) from None


def _began_in(file: FilePath) -> str | None:
    """The working directory of the last session of a run, from its folder or a checkpoint in it."""
    for home in (file.parent, file.parent.parent.parent):
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            return str(json.loads((home / "meta.json").read_text())["sessions"][-1]["cwd"])
    return None


def load_tree(tree: Node, stem: str, overrides: Sequence[str]) -> Loaded:
    """The checked experiment of a tree with overrides; its name is `stem` unless it has one."""
    before = _env_of(tree)
    tree, problems = layers.apply_overrides(tree, overrides)
    if before != _env_of(tree):  # the file's name is likely to contain its environment
        stem = ""
    return resolve(_named(layers.without_dropped_stops(tree), stem), problems)


def _env_of(tree: Node) -> Any:
    return layers.find(tree, ("env", "use")).value


def resolve(tree: Node, problems: Iterable[Problem] = ()) -> Loaded:
    """Validate and check a tree. Raises ConfigError with `problems` and all others."""
    problems = list(problems)
    data = tree.plain()
    experiment, findings = validate(data)
    if experiment is not None:
        findings += [*_check_sections(experiment), *checks.check_algorithm(experiment)]
        findings += [*check_memory(experiment), *check_sweep(experiment, tree)]
    elif (partial := salvage(data, findings)) is not None:
        wrong = {finding.path[0] for finding in findings if finding.path}
        wrong -= {"stop", "multi_agent"}
        more = list(_check_sections(partial))
        if "algorithm" not in wrong:
            more += checks.check_settings_of_policies(partial)
        more += [] if "sweep" in wrong else check_sweep(partial, tree)
        findings += [finding for finding in more if finding.path[0] not in wrong]
    problems += _located(tree, findings)
    if problems or experiment is None:
        raise ConfigError(_in_order(problems))
    return Loaded(experiment, tree, tuple(_located(tree, find_warnings(experiment))))


def _check_sections(experiment: ExperimentConfig) -> Iterator[Finding]:
    """The checks that also work where other sections are wrong."""
    yield from check_environment(experiment)
    yield from check_code(experiment)
    yield from checks.check_result_keys(experiment)
    yield from checks.check_sections(experiment)


def _located(tree: Node, findings: Iterable[Finding]) -> list[Problem]:
    return [
        Problem(layers.find(tree, found.path).origin, layers.address(found.path), found.message)
        for found in findings
    ]


def _in_order(problems: list[Problem]) -> list[Problem]:
    """Sorted by file, line and column, with the command line last."""
    sources = list(dict.fromkeys(problem.origin.source for problem in problems))
    return sorted(
        problems,
        key=lambda p: (
            p.origin == COMMAND_LINE,
            sources.index(p.origin.source),
            p.origin.line or 0,
            p.origin.column or 0,
        ),
    )


def _named(tree: Node, stem: str) -> Node:
    """Name a run without a name after `stem`, or if that is empty by algorithm and environment."""
    name = tree.child("name")
    if name is not None and name.value is not None:
        return tree
    origin = Origin(tree.origin.source) if stem else DEFAULT
    if not stem:
        env = _env_of(tree)
        algorithm = layers.find(tree, ("algorithm",)).value
        parts = [part for part in (algorithm, env) if isinstance(part, str)]
        stem = "_".join(part.rpartition(":")[2] for part in parts).lower()
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("._-")[:200] or "experiment"
    return Node({"name": Node(safe, origin), **tree.value}, tree.origin)
