"""Names that a config may use for code, and how they are resolved to objects.

Owns: the tables of registered names, where the shipped experiment files are, import paths
("package.module:attribute"), and the nearest name to a misspelt one. Must not know: any room of
rlrun at import time; the tables hold import paths.
"""

import difflib
import importlib
import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rlrun.config.problems import place_in_users_code

ALGORITHMS: dict[str, str] = {
    "PPO": "rlrun.algorithms.ppo:PPO",
    "A2C": "rlrun.algorithms.a2c:A2C",
    "A3C": "rlrun.algorithms.a3c:A3C",
    "APPO": "rlrun.algorithms.appo:APPO",
    "IMPALA": "rlrun.algorithms.impala:IMPALA",
    "DQN": "rlrun.algorithms.dqn:DQN",
    "PG": "rlrun.algorithms.pg:PG",
    "SAC": "rlrun.algorithms.sac:SAC",
}
"""Name -> import path of the algorithm class."""

_OTHER_NAMES = {
    "SimpleQ": "DQN with training.double_q: false and training.dueling: false",
    "APEX": "DQN with exploration.runner_exponent: 7 and replay.prioritized: true",
    "R2D2": "DQN with model.use_lstm: true",
    "C51": "DQN with training.num_atoms: 51",
    "Rainbow": "DQN with training.noisy, num_atoms: 51, n_step: 3, and replay.prioritized",
    "RecurrentPPO": "PPO with model.use_lstm: true",
    "MaskablePPO": "PPO, which finds action masks by itself",
}
"""Algorithms of other libraries -> how to configure them here."""

ENVS: dict[str, Callable[..., Any]] = {}
"""Name -> callable that makes the environment; filled by `rlrun.register_env`."""

GIVEN: dict[str, Any] = {}
"""``__main__:NAME`` -> a class or function that was passed in Python and has no import path; other
processes receive the object itself."""

SHIPPED_ENVS: dict[str, str] = {
    "PlayCards": "rlrun.envs.examples:PlayCards",
    "RepeatAfterMe": "rlrun.envs.examples:RepeatAfterMe",
    "StatelessCartPole": "rlrun.envs.examples:StatelessCartPole",
    "StretchedPendulum": "rlrun.envs.examples:StretchedPendulum",
    "CrashingCartPole": "rlrun.envs.multi_agent_examples:CrashingCartPole",
    "MultiAgentCartPole": "rlrun.envs.multi_agent_examples:MultiAgentCartPole",
    "RockPaperScissors": "rlrun.envs.multi_agent_examples:RockPaperScissors",
    "SlowCartPole": "rlrun.envs.multi_agent_examples:SlowCartPole",
    "TakeTurns": "rlrun.envs.multi_agent_examples:TakeTurns",
}
"""Environments that come with rlrun, by name; `ENVS` takes precedence."""

MODELS: dict[str, str] = {"ActorCritic": "rlrun.policies.rl_module:ActorCritic"}
"""Networks that come with rlrun, by name; the first is the default, `model.use: null`."""

INSTEAD_OF_STATISTICS: dict[str, str] = {
    "NormalizeObservation": "set env_runners.observation_filter: MeanStdFilter instead, whose "
    "statistics all env runners share and checkpoints hold",
    "NormalizeReward": "set connectors.normalize_rewards: true instead, whose statistics all env "
    "runners share and checkpoints hold",
}
"""Wrappers of gymnasium that keep statistics -> what to do instead."""

COLLECTORS: dict[str, str] = {
    "ColumnarCollector": "rlrun.sampling.columnar_collector:ColumnarCollector",
    "SimpleListCollector": "rlrun.sampling.simple_list_collector:SimpleListCollector",
}
"""Sample collectors that come with rlrun, by name."""

DISTRIBUTIONS: dict[str, str] = {
    "beta": "rlrun.policies.chosen_distributions:Beta",
    "squashed_gaussian": "rlrun.policies.chosen_distributions:SquashedGaussian",
    "deterministic": "rlrun.policies.chosen_distributions:Deterministic",
    "autoregressive": "rlrun.policies.chosen_distributions:Autoregressive",
}
"""Action distributions that `model.distribution` knows besides import paths, by name."""

DEFAULT_COLLECTOR = "ColumnarCollector"
LOG_COLLECTOR = "rlrun.sampling.log_collector:LogCollector"
"""The default for slots that join and leave."""

BUILT_IN_SINKS = ("console", "jsonl")
"""The sinks that need neither a package nor arguments."""

LOGGERS: dict[str, str] = {
    "csv": "rlrun.experiment.report.loggers:CsvSink",
    "tensorboard": "rlrun.experiment.report.loggers:TensorBoardSink",
    "wandb": "rlrun.experiment.report.loggers:WandbSink",
    "mlflow": "rlrun.experiment.report.loggers:MlflowSink",
}
"""The sinks for other programs, by name; all but csv need the package of that name."""

NO_MODULE = "there is no module"

_IMPORT_PATH = re.compile(r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*$")


class ImportPathError(ValueError):
    """An import path cannot be resolved; the message names the missing part and a similar name."""

    exit_code = 2


def configs_folder() -> Path:
    """The folder of the shipped experiment files: inside an installed package, else beside it."""
    package = Path(__file__).parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def shipped_configs() -> dict[str, Path]:
    """The shipped experiment files by name: ``ppo/cartpole`` is ppo_cartpole.yaml."""
    files = sorted(configs_folder().glob("*.yaml"))
    return {file.stem.replace("_", "/", 1): file for file in files}


def experiment_file(path: Path) -> Path:
    """The file at `path`, or the shipped one of that name: ``ppo_cartpole``, ``ppo/cartpole``."""
    if path.suffix or path.is_absolute() or os.path.exists(path):
        return path
    shipped = configs_folder() / f"{path.as_posix().replace('/', '_')}.yaml"
    return shipped if os.path.isfile(shipped) else path


def similar_file(path: Path) -> str:
    """`` - did you mean FILE?`` for the nearest name beside `path` or of the shipped files."""
    beside = {file.stem: file for file in sorted(path.parent.glob("*.yaml"))}
    if (found := nearest(path.stem, beside)) is not None:
        return f" - did you mean {beside[found]}?"
    written = path.as_posix().removesuffix(".yaml").removeprefix("configs/").replace("_", "/", 1)
    return suggestion(written, shipped_configs())


def similar_folder(path: Path, home: Path) -> str:
    """`` - did you mean PATH?`` for the nearest name in `home`, the folder of `path`."""
    found = nearest(path.name, os.listdir(home)) if home.is_dir() else None
    return "" if found is None else f" - did you mean {path.with_name(found)}?"


def is_import_path(name: str) -> bool:
    """Whether `name` has the form "package.module:attribute"."""
    return _IMPORT_PATH.match(name) is not None


def as_import_path(name: str) -> str | None:
    """The import path that a name with dots alone, as in RLlib, would be; None for others."""
    path = ":".join(name.rsplit(".", 1))
    return path if is_import_path(path) else None


def import_object(path: str) -> Any:
    """The object at "package.module:attribute"; modules may be in the working directory.

    Raises ImportPathError if the path is malformed, a module is missing or raises during its
    import, or the attribute is missing.
    """
    if path in GIVEN:
        return GIVEN[path]
    if not is_import_path(path):
        raise ImportPathError(f'expected "package.module:attribute", got {path!r}')
    module_name, _, attributes = path.partition(":")
    # A console script has its own folder on sys.path and not, as `python -m` has, the working one.
    if os.getcwd() not in sys.path and "" not in sys.path:
        for name in ("gymnasium", "numpy", "ray", "torch"):
            if os.path.exists(f"{name}.py"):
                raise ImportPathError(f"./{name}.py hides the installed {name}; rename it")
        sys.path.insert(0, os.getcwd())
    found = import_module(module_name)
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            if module_name == "__main__":
                message = "is code of another Python program, which cannot be imported"
                raise ImportPathError(f"{path} {message}: put it at the top of a module") from None
            hint = suggestion(attribute, [name for name in dir(found) if not name.startswith("_")])
            raise ImportPathError(f"{module_name} has no {attribute!r}{hint}") from None
    return found


def import_module(name: str) -> Any:
    """Import a module; raises ImportPathError if it is missing or fails."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(missing + "."):
            raise ImportPathError(f"{NO_MODULE} {missing!r}") from None
        raise ImportPathError(f"{name} needs the module {missing!r}, which is missing") from error
    except (Exception, SystemExit) as error:
        place = place_in_users_code(error)
        failed = "failed" if place is None else f"failed at {place}"
        message = f"importing {name} {failed}: {type(error).__name__}: {error}"
        raise ImportPathError(message) from error


def import_path_of(found: Any) -> str | None:
    """The import path of a class or function; None if it has none."""
    module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    if not module or not name or not is_import_path(f"{module}:{name}"):
        return None
    try:
        return f"{module}:{name}" if import_object(f"{module}:{name}") is found else None
    except ImportPathError:
        return None


def code_name(code: Callable[..., Any]) -> str:
    """The name of a class or function in a config: its import path.

    Code of the main program, lambdas and local functions are registered in `GIVEN`.
    """
    path = import_path_of(code)
    if path is not None and not path.startswith("__main__:"):
        return path
    own = getattr(code, "__name__", type(code).__name__)
    base = "__main__:" + re.sub(r"\W", "", own)
    names = itertools.chain([base], (f"{base}_{k}" for k in itertools.count(2)))
    return next(name for name in names if GIVEN.setdefault(name, code) is code)


def takes_a_config(use: str, creator: Any) -> bool:
    """Whether the single argument of an environment's creator is its config, of any name.

    That is the case for registered creators, and for functions passed in Python.
    """
    return ":" not in use or (use in GIVEN and not isinstance(creator, type))


def algorithm_class(name: str) -> Any:
    """The algorithm class of a registered name or an import path.

    Raises ImportPathError for a name that is neither.
    """
    if name in _OTHER_NAMES:
        raise ImportPathError(f"{name} is {_OTHER_NAMES[name]}")
    if name not in ALGORITHMS and not is_import_path(name):
        path = as_import_path(name)
        hint = f"there is no algorithm {name!r} - did you mean {path}?"
        raise ImportPathError(hint if path else no_such("algorithm", name, ALGORITHMS))
    return import_object(ALGORITHMS.get(name, name))


def wrapper_path(name: str) -> str:
    """The import path of an environment wrapper: other names are of gymnasium.wrappers."""
    return name if is_import_path(name) else f"gymnasium.wrappers:{name}"


def is_installed(module: str) -> bool:
    """Whether `module` can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The most similar of `names`, ignoring case; None if none is similar."""
    by_lower = {candidate.lower(): candidate for candidate in names}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def suggestion(name: str, names: Iterable[str]) -> str:
    """`` - did you mean X?`` for the nearest of `names`, or nothing."""
    found = nearest(name, names)
    return f" - did you mean {found}?" if found else ""


def no_such(kind: str, name: str, names: Iterable[str]) -> str:
    """``there is no KIND 'NAME'; choose from A, B - did you mean A?``"""
    known = list(names)
    return f"there is no {kind} {name!r}; choose from {', '.join(known)}{suggestion(name, known)}"


def no_such_argument(function: str, name: str, names: Sequence[str]) -> str:
    """``FUNCTION takes no such argument; it takes A, B - did you mean A?``"""
    takes = ", ".join(names) or "no arguments"
    return f"{function} takes no such argument; it takes {takes}{suggestion(name, names)}"


def install_hint(extra: str) -> str:
    """``pip install "rlrun[EXTRA]"``"""
    return f'pip install "rlrun[{extra}]"'
