"""From a file and a command line to a checked experiment.

Owns: the order of the steps (read, lay over, validate, check) and collecting the problems of all of
them. Must not know: how a step works; see layers.py, validate.py and the checks beside them.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath

from rlrun.config import checks, layers
from rlrun.config.code_checks import check_code
from rlrun.config.env_checks import check_environment
from rlrun.config.memory_checks import check_memory
from rlrun.config.problems import COMMAND_LINE, DEFAULT, ConfigError, Finding, Origin, Path, Problem
from rlrun.config.registry import experiment_file
from rlrun.config.schema import ExperimentConfig
from rlrun.config.sweep import check_sweep
from rlrun.config.validate import salvage, validate
from rlrun.config.yaml_tree import Node


@dataclass(frozen=True)
class Loaded:
    """An experiment, the origins of its values, and warnings."""

    experiment: ExperimentConfig
    tree: Node
    warnings: tuple[Problem, ...]

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


def load_experiment(
    path: str | os.PathLike[str] | None, overrides: Sequence[str] = ()
) -> ExperimentConfig:
    """The experiment of a YAML file, checked as ``rlrun check`` does it.

    Args:
        path: the file, or the name of a shipped one (``ppo_cartpole``); None where the overrides
            name algorithm and env.
        overrides: ``"training.lr=1e-3"``: values in YAML, laid over the file in their order.

    Raises:
        ConfigError: with all problems, one line each.
    """
    return load(path, overrides).experiment


def load(path: str | os.PathLike[str] | None, overrides: Sequence[str] = ()) -> Loaded:
    """Like `load_experiment`, with the origins of the values and the warnings."""
    file = None if path is None else experiment_file(FilePath(path))
    tree = layers.read_file(file) if file is not None else Node({}, COMMAND_LINE)
    tree, problems = layers.apply_overrides(tree, overrides)
    tree = _named(layers.without_dropped_stops(tree), file)
    return resolve(tree, problems)


def resolve(tree: Node, problems: Iterable[Problem] = ()) -> Loaded:
    """Validate and check a tree. Raises ConfigError with `problems` and all others."""
    problems = list(problems)
    data = tree.plain()
    experiment, findings = validate(data)
    if experiment is not None:
        findings += [*_check_names(experiment), *checks.check_experiment(experiment)]
        findings += [*check_memory(experiment), *check_sweep(experiment, tree)]
    elif (partial := salvage(data, findings)) is not None:
        wrong = {finding.path[0] for finding in findings if finding.path} - {"stop"}
        more = list(_check_names(partial))
        if not wrong & {"algorithm", "sweep"}:
            more += check_sweep(partial, tree)
        findings += [finding for finding in more if finding.path[0] not in wrong]
    problems += _located(tree, findings)
    if problems or experiment is None:
        raise ConfigError(_in_order(problems))
    return Loaded(experiment, tree, tuple(_located(tree, checks.warnings(experiment))))


def _check_names(experiment: ExperimentConfig) -> Iterator[Finding]:
    """The checks that also work where other sections are wrong."""
    yield from check_environment(experiment)
    yield from check_code(experiment)
    yield from checks.check_result_keys(experiment)


def _located(tree: Node, findings: Iterable[Finding]) -> list[Problem]:
    return [
        Problem(layers.find(tree, found.path).origin, layers.address(found.path), found.message)
        for found in findings
    ]


def _in_order(problems: list[Problem]) -> list[Problem]:
    """File by file from top to bottom, the command line last."""
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


def _named(tree: Node, file: FilePath | None) -> Node:
    """Name a run without a name after its file, or after its algorithm and environment."""
    name = tree.child("name")
    if name is not None and name.value is not None:
        return tree
    if file is not None:
        stem, origin = file.stem, Origin(str(file))
    else:
        env = layers.find(tree, ("env", "use")).value
        algorithm = layers.find(tree, ("algorithm",)).value
        parts = [part for part in (algorithm, env) if isinstance(part, str)]
        stem, origin = "_".join(part.rpartition(":")[2] for part in parts).lower(), DEFAULT
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("._-") or "experiment"
    return Node({**tree.value, "name": Node(safe, origin)}, tree.origin)
