"""``rlrun check``: validate experiment files and show the resolved settings."""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlrun.cli import errors
from rlrun.cli.arguments import complete_files, is_override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlrun.algorithms.algorithm import Algorithm
    from rlrun.config.loader import Loaded
    from rlrun.config.problems import Problem
    from rlrun.config.schema import ExperimentConfig


def check(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE... [KEY=VALUE ...]",
            help="Files or run folders, then overrides.",
            autocompletion=complete_files,
        ),
    ],
    show: Annotated[
        bool,
        typer.Option("--show", help="Print the resolved config with the origin of each value."),
    ] = False,
) -> None:
    """Check experiment files without training, and print all errors of all files.

    The environment and the networks are built once, in this process. Whatever `rlrun train` would
    refuse on this machine, such as a GPU that it lacks, is an error.
    """
    from rlrun.config.dump import show_yaml
    from rlrun.config.group import group_overrides
    from rlrun.config.loader import load
    from rlrun.config.problems import ConfigError
    from rlrun.config.sweep import is_sweep
    from rlrun.config.trust import TrustError
    from rlrun.experiment.sweep.points import check_points

    overrides = [text for text in arguments if is_override(text)]
    files = [text for text in arguments if text not in overrides]
    if not files:
        raise typer.BadParameter("name a FILE, such as configs/ppo_cartpole.yaml")
    group = group_overrides(overrides)
    problems: list[Problem] = []
    failed = errors.FINISHED
    for file in files:
        path = os.path.join(file, "config.yaml") if os.path.isdir(file) else file
        loaded: Loaded | None = None
        try:
            loaded = load(path, group or overrides)
            experiment = loaded.experiment
            if is_sweep(experiment.sweep) and experiment.sweep.search != "optuna":
                check_points(loaded)
            _build(experiment)
            lacking = list(_lacking_here(experiment))
            if lacking:
                raise ConfigError(lacking)
        except ConfigError as error:
            problems += (loaded.placed(error) if loaded else error).problems
            continue
        except TrustError as error:
            failed = errors.report(error)
            continue
        except Exception as error:  # raised by code of the environment or the networks
            error.add_note(f"{file}: failed: {type(error).__name__}")
            failed = errors.report(error)
            continue
        errors.report_problems(loaded.warnings, style="yellow", prefix="warning: ")
        if show:
            typer.echo(show_yaml(experiment, loaded.origin), nl=False)
        else:
            typer.echo(f"{file}: ok, {experiment.algorithm} on {experiment.env.use}")
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    raise typer.Exit(failed)


def _build(experiment: "ExperimentConfig") -> None:
    """Build the environment and the networks, and act once.

    Raises:
        ConfigError: they do not fit, or a forward pass of the user's own network raises.
    """
    from rlrun.experiment.rollout import build_alone

    # Without user callbacks, which may begin to report when an algorithm is built.
    algorithm = build_alone(experiment.model_copy(update={"callbacks": ()}))
    try:
        _act(algorithm)
    finally:
        algorithm.stop()


def _act(algorithm: "Algorithm[Any]") -> None:
    """Choose actions with each network of the user's own, for observations of its space.

    Raises:
        ConfigError: its forward pass raises.
    """
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
    from rlrun.learning.learner import resolve_device
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
