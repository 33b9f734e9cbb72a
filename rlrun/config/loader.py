"""From a file and a command line to a checked experiment.

Owns: the order of the steps (read, lay over, validate, check) and collecting every problem of all
of them. Must not know: how any step works; see layers.py, validate.py, checks.py, code_checks.py.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath

from rlrun.config import checks, code_checks, layers, multi_agent_checks, sweep_checks
from rlrun.config.dump import dump_yaml
from rlrun.config.problems import COMMAND_LINE, DEFAULT, ConfigError, Origin, Path, Problem
from rlrun.config.schema import ExperimentConfig
from rlrun.config.validate import Finding, salvage, validate
from rlrun.config.yaml_tree import Node

__all__ = ["Loaded", "dump_yaml", "load", "load_experiment", "resolve"]


@dataclass(frozen=True)
class Loaded:
    """An experiment, where each of its values comes from, and what is odd about it."""

    experiment: ExperimentConfig
    tree: Node
    warnings: tuple[Problem, ...]

    def origin(self, path: Path) -> Origin:
        """Where the value at `path` was written; DEFAULT where it was not."""
        node = self.tree
        for part in path:
            below = node.child(part)
            if below is None:
                # A value in short form (`env: CartPole-v1`) stands for the mapping.
                return node.origin if isinstance(node.value, str) else DEFAULT
            node = below
        return node.origin


def load_experiment(
    path: str | os.PathLike[str] | None, overrides: Sequence[str] = (), **top_level: object
) -> ExperimentConfig:
    """The experiment of a YAML file, checked as ``rlrun check`` does it.

    Args:
        path: the file; None where `top_level` names algorithm and env.
        overrides: ``"training.lr=1e-3"``: values in YAML, laid over the file in their order.
        top_level: values such as ``seed=3``, laid over everything else; None leaves alone.

    Raises:
        ConfigError: everything that is wrong, one line a problem.

    """
    return load(path, overrides, **top_level).experiment


def load(
    path: str | os.PathLike[str] | None, overrides: Sequence[str] = (), **top_level: object
) -> Loaded:
    """Like `load_experiment`, with the origins of the values and the warnings."""
    file = None if path is None else FilePath(path)
    empty = Node({}, COMMAND_LINE)
    tree = layers.read_file(file) if file is not None else empty
    tree, problems = layers.apply_overrides(tree, overrides)
    given = {key: value for key, value in top_level.items() if value is not None}
    tree = layers.merge(tree, layers.from_keywords(given)) if given else tree
    tree = _named(layers.without_dropped_stops(tree), file)
    return resolve(tree, problems)


def resolve(tree: Node, problems: Iterable[Problem] = ()) -> Loaded:
    """Validate and check a tree. Raises ConfigError with `problems` and everything else wrong."""
    problems = list(problems)
    data = tree.plain()
    experiment, findings = validate(data)
    if experiment is not None:
        findings += [
            *code_checks.check_code(experiment),
            *checks.check_result_keys(experiment),
            *checks.check_horizon(experiment),
            *checks.check_model(experiment),
            *checks.check_connectors(experiment),
            *multi_agent_checks.check_multi_agent(experiment),
            *checks.check_algorithm(experiment),
            *checks.check_learners(experiment),
            *sweep_checks.check_sweep(experiment, tree),
        ]
    elif (partial := salvage(data, findings)) is not None:
        more = [*code_checks.check_code(partial), *checks.check_result_keys(partial)]
        wrong = {finding.path[0] for finding in findings if finding.path} - {"stop"}
        if not wrong & {"algorithm", "sweep"}:
            more += sweep_checks.check_sweep(partial, tree)
        findings += [finding for finding in more if finding.path[0] not in wrong]
    problems += _located(tree, findings)
    if problems or experiment is None:
        raise ConfigError(_in_order(problems))
    return Loaded(experiment, tree, tuple(_located(tree, checks.warnings(experiment))))


def _located(tree: Node, findings: Iterable[Finding]) -> list[Problem]:
    return [
        Problem(
            layers.find(tree, finding.path).origin, layers.address(finding.path), finding.message
        )
        for finding in findings
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
    """A run without a name is called after its file, or after its algorithm and environment."""
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
