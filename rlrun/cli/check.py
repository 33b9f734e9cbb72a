"""``rlrun check``: validate experiment files and show the resolved settings."""

import json as json_module
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rlrun.cli import errors
from rlrun.cli.arguments import complete_files, is_override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlrun.algorithms.algorithm import Algorithm
    from rlrun.config.loader import Loaded
    from rlrun.config.problems import Problem
    from rlrun.config.schema import ExperimentConfig


def check(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE_OR_FOLDER... [KEY=VALUE ...]",
            help="Files, or folders whose YAML files are checked, then overrides.",
            autocompletion=complete_files,
        ),
    ],
    show: Annotated[
        bool,
        typer.Option("--show", help="Print the resolved config with the origin of each value."),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the problems and warnings of each file as JSON.")
    ] = False,
) -> None:
    """Check experiment files without training, and print all errors of all files.

    The environment and the networks are built once, in this process. Whatever `rlrun train` would
    refuse on this machine, such as a GPU that it lacks, is an error.
    """
    from rlrun.config.dump import show_yaml
    from rlrun.config.problems import ConfigError
    from rlrun.config.sweep import group_overrides

    overrides = [text for text in arguments if is_override(text)]
    names = [text for text in arguments if text not in overrides]
    if not names:
        raise typer.BadParameter("name a FILE, such as configs/ppo_cartpole.yaml")
    if show and json:
        raise typer.BadParameter("--show prints YAML; leave out either --show or --json")
    words = group_overrides(overrides) or overrides
    problems: list[Problem] = []
    failed, rows = errors.FINISHED, []
    for file in (file for name in names for file in _files(name)):
        checked = _check(file, words)
        problems += checked.problems
        if checked.error is not None:
            failed = errors.report(checked.error)
        if json:
            rows.append(checked.plain())
        elif checked.loaded is not None and not (checked.problems or checked.error):
            experiment, warnings = checked.loaded.experiment, checked.loaded.warnings
            errors.report_problems(warnings, style="yellow", prefix="warning: ")
            if show:
                typer.echo(show_yaml(experiment, checked.loaded.origin), nl=False)
            else:
                typer.echo(checked.ok(experiment))
    if json:
        typer.echo(json_module.dumps(rows))
        raise typer.Exit(errors.INPUT_WRONG if problems else failed)
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    raise typer.Exit(failed)


def _files(name: str) -> list[str]:
    """The file of this name; of a folder, such as a run's, the YAML files in it."""
    inside = sorted(os.listdir(name)) if os.path.isdir(name) else []
    found = [os.path.join(name, each) for each in inside if each.endswith((".yaml", ".yml"))]
    return found or [name]


class _Checked(NamedTuple):
    """What was found in a file."""

    file: str
    loaded: "Loaded | None"
    problems: "tuple[Problem, ...]" = ()
    error: Exception | None = None
    """Raised by code of the environment or the networks, or because the code is not trusted."""
    replay_bytes: int | None = None
    """Of full replay buffers, at least."""

    def ok(self, experiment: "ExperimentConfig") -> str:
        """One line for a file without problems."""
        from rlrun.experiment.report.numbers import size_text

        text = f"{self.file}: ok, {experiment.algorithm} on {experiment.env.use}"
        size = self.replay_bytes
        return text if size is None else f"{text}, replay of at least {size_text(size)}"

    def plain(self) -> dict[str, Any]:
        """The problems and warnings as plain values, the error as one of the problems."""
        from rlrun.config.problems import Origin, Problem

        problems = list(self.problems)
        if self.error is not None:
            message = f"{type(self.error).__name__}: {self.error}"
            problems.append(Problem(Origin(self.file), "", message))
        return {
            "file": self.file,
            "problems": [asdict(problem) for problem in problems],
            "warnings": [asdict(each) for each in self.loaded.warnings] if self.loaded else [],
            "replay_bytes": self.replay_bytes,
        }


def _check(file: str, overrides: "Sequence[str]") -> _Checked:
    """Load a file, and build what it describes."""
    from rlrun.config.loader import load
    from rlrun.config.problems import ConfigError
    from rlrun.config.sweep import is_sweep
    from rlrun.config.trust import TrustError
    from rlrun.experiment.sweep.points import check_points

    loaded: Loaded | None = None
    try:
        loaded = load(file, overrides)
        experiment = loaded.experiment
        if is_sweep(experiment.sweep) and experiment.sweep.search != "optuna":
            check_points(loaded)
        replay_bytes = _build(experiment)
        if lacking := list(_lacking_here(experiment)):
            raise ConfigError(lacking)
        return _Checked(file, loaded, replay_bytes=replay_bytes)
    except ConfigError as error:
        return _Checked(file, loaded, (loaded.placed(error) if loaded else error).problems)
    except TrustError as error:
        return _Checked(file, loaded, error=error)
    except Exception as error:  # raised by code of the environment or the networks
        error.add_note(f"{file}: failed: {type(error).__name__}")
        return _Checked(file, loaded, error=error)


def _build(experiment: "ExperimentConfig") -> int | None:
    """Build the environment and the networks, and act once; ConfigError if they do not fit.

    Returns the bytes that full replay buffers take at least; None without replay.
    """
    from rlrun.algorithms.replay import ReplayAlgorithm
    from rlrun.experiment.rollout import build_alone

    # Without user callbacks, which may begin to report when an algorithm is built.
    algorithm = build_alone(experiment.model_copy(update={"callbacks": ()}))
    try:
        _act(algorithm)
        if isinstance(algorithm, ReplayAlgorithm):
            return algorithm.replay.require_memory()
        return None
    finally:
        algorithm.stop()


def _act(algorithm: "Algorithm[Any]") -> None:
    """Act with each network of the user's own; ConfigError if its forward pass raises."""
    from rlrun.config.problems import ConfigError, misfit
    from rlrun.data.nested import has_action_mask

    for policy_id, settings in algorithm.policies.settings.items():
        use, space = settings.model.use, algorithm.policies.module_spaces(policy_id)[0]
        if use is None or settings.use is not None or has_action_mask(space):
            continue  # a random mask may allow no action
        try:
            for explore in (False, True):
                acting = algorithm.acting_policy(policy_id, explore=explore)
                acting.compute_single_action(acting.observation_space.sample())
        except ConfigError:
            raise
        except Exception as error:
            shown = f"for an observation of {space}: {type(error).__name__}: {error}"
            raise misfit("model.use", f"{use} fails {shown}") from error


def _lacking_here(experiment: "ExperimentConfig") -> "Iterator[Problem]":
    """CPUs, GPUs and devices that the experiment needs and this machine lacks.

    Prints a warning if each env runner reserves less than a CPU.
    """
    from rlrun.actors.ray_runtime import ResourceError, local_resources, preflight
    from rlrun.algorithms.runners import FRACTION
    from rlrun.config.policies import evaluation_runners, num_networks
    from rlrun.config.problems import ConfigError, Origin, Problem
    from rlrun.learning.machine import resolve_device
    from rlrun.policies.torch_policy import require_cuda

    try:
        cpus = preflight(
            experiment.env_runners,
            local_resources(),
            learners=experiment.learners,
            evaluation=evaluation_runners(experiment),
            num_networks=num_networks(experiment),
        )
        if cpus < 1.0:
            errors.report_problems(
                [Problem(Origin(""), "", FRACTION % cpus)], style="yellow", prefix="warning: "
            )
    except ResourceError as error:
        yield from (Problem(Origin(""), "", line) for line in str(error).splitlines())
    try:
        resolve_device(experiment.learners.device)
        if experiment.env_runners.num_gpus_per_env_runner:
            require_cuda("cuda")
    except ConfigError as error:
        yield from error.problems
