"""The fluent builder: an experiment in Python instead of YAML.

Owns: `AlgorithmConfig`, the methods that fill in sections, and RLlib's flat config dicts. Must not
know: types and defaults, which the schema checks as for a YAML file.

    PPOConfig().environment("CartPole-v1").training(lr=3e-4).build()
"""

import copy
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from rlrun.config import retired
from rlrun.config.loader import Loaded, load, load_tree, resolve
from rlrun.config.problems import ConfigError, Origin, Problem
from rlrun.config.registry import algorithm_class, code_name
from rlrun.config.schema import ExperimentConfig, TrainingConfig, sections
from rlrun.config.validate import unknown_key
from rlrun.config.yaml_tree import from_plain


class _Default(Enum):  # whose members are never copied
    NOT_PROVIDED = "NotProvided"

    def __repr__(self) -> str:
        return self.value


NotProvided: Final = _Default.NOT_PROVIDED
"""Default of all arguments, which keeps the setting's value. None is a value like any other."""


_CODE = (
    *("use", "env", "env_runner_cls", "sample_collector", "distribution", "loss", "sinks"),
    *("env_wrappers", "env_to_module_connector", "module_to_env_connector", "learner_connectors"),
    *("agents", "policies_to_train", "scheduler", "type"),
)
"""Settings that name code, for which classes and functions may be passed as well."""

_NO_ARGUMENTS = ("normalize_actions", "clip_actions", "clip_rewards", "disable_env_checking")
"""Settings that RLlib's `environment` takes; an environment with a config would swallow them."""


class AlgorithmConfig(retired.OldNames):
    """Base of the algorithms' builders; a subclass sets `algorithm` and nothing else.

    Every method takes keys of its section as keyword arguments and returns the builder; other keys
    keep their values. A wrong key raises ConfigError at once, a wrong value in `experiment()`.

    Args:
        config: settings as a plain dict: sections, or RLlib's flat keys, whose names (not values)
            are translated.
        env: the environment, as for `environment`.
    """

    algorithm: ClassVar[str]
    old_names: ClassVar[Mapping[str, str]] = {
        "framework": "rlrun trains with PyTorch only; remove the call",
        "rollouts": "use env_runners()",
        "offline_data": "rlrun learns from environments, not from recorded data",
        "rl_module": "use model(use=...)",
        "build_algo": "use build()",
        **dict.fromkeys(
            ("api_stack", "experimental", "python_environment"), "rlrun has no such setting"
        ),
    }

    def __init__(self, config: Mapping[str, Any] | None = None, *, env: Any = NotProvided) -> None:
        self._values: dict[str, Any] = {"algorithm": self.algorithm}
        self._frozen = False
        given = {} if env is NotProvided else {"env": env}
        self.update_from_dict({**(config or {}), **given})

    def environment(
        self, env: Any = NotProvided, *, env_config: Any = NotProvided, **kwargs: Any
    ) -> Self:
        """The environment (id, import path, class or function) and its keyword arguments.

        ``env_config`` takes arguments of any name, also that of a setting.
        """
        self._check_open()
        self._raise_unknown([("env", key) for key in kwargs if key in _NO_ARGUMENTS])
        if env is not NotProvided:
            named = _named(env if isinstance(env, dict) else {"use": env})
            earlier = self._values.get("env", {})
            # Arguments of another environment are dropped.
            is_other = earlier.get("use", named.get("use")) != named.get("use")
            self._values["env"] = named if is_other else {**earlier, **named}
        arguments = {} if env_config is NotProvided else env_config or {}
        given = {**arguments, **_provided(kwargs)}
        if given:
            self._values["env"] = {**self._values.get("env", {}), **copy.deepcopy(given)}
        return self

    def env_runners(self, **settings: Any) -> Self:
        """Section `env_runners`: how experience is collected.

        As in all sections, code (connectors, the collector, the class of the runners) may be given
        as classes or functions, import paths or ``{"use": ..., key: value}``.
        """
        return self._set("env_runners", settings)

    def connectors(self, **settings: Any) -> Self:
        """Section `connectors`: how actions and rewards are transformed."""
        return self._set("connectors", settings)

    def model(self, **settings: Any) -> Self:
        """Section `model`: the networks. With `use`, further keys are arguments of that class."""
        return self._set("model", settings)

    def policy(self, use: Any, **config: Any) -> Self:
        """A custom `Policy`, as class or import path, and its ``config``."""
        self._check_open()
        self._values["policy"] = {"use": _named(use), **copy.deepcopy(config)}
        return self

    def initial_weights(self, source: Any) -> Self:
        """The run whose weights this run begins with, or a dict, policy id -> run."""
        self._check_open()
        if isinstance(source, Mapping):
            source = {policy_id: _path_text(own) for policy_id, own in source.items()}
        self._values["initial_weights"] = _path_text(source)
        return self

    def training(self, **settings: Any) -> Self:
        """Section `training`: the algorithm's own settings."""
        return self._set("training", settings)

    def resources(self, **settings: Any) -> Self:
        """Section `learners`: where and how the networks are trained."""
        return self._set("learners", settings)

    learners = resources

    def exploration(self, **settings: Any) -> Self:
        """Section `exploration`: how actions deviate from the greedy ones."""
        return self._set("exploration", settings)

    def replay(self, **settings: Any) -> Self:
        """Section `replay`: the buffer of past transitions."""
        return self._set("replay", settings)

    def multi_agent(self, **settings: Any) -> Self:
        """Section `multi_agent`: several policies, for environments with several agents."""
        # RLlib takes sets, too; their order may be another one in each process.
        settings = {k: sorted(v) if isinstance(v, set) else v for k, v in settings.items()}
        policies = settings.get("policies")
        if isinstance(policies, dict):
            settings["policies"] = {name: _policy(own) for name, own in policies.items()}
        return self._set("multi_agent", settings)

    def evaluation(self, **settings: Any) -> Self:
        """Section `evaluation`: evaluation episodes between iterations."""
        return self._set("evaluation", settings)

    def fault_tolerance(self, **settings: Any) -> Self:
        """Section `fault_tolerance`: handling of env runners and environments that fail."""
        return self._set("fault_tolerance", settings)

    def checkpointing(self, **settings: Any) -> Self:
        """Section `checkpoint`: when the state of the run is written."""
        return self._set("checkpoint", settings)

    def reporting(self, **settings: Any) -> Self:
        """Section `report`: reports about the run."""
        return self._set("report", settings)

    def sweep(self, **settings: Any) -> Self:
        """Section `sweep`: the search of `run_sweep`."""
        return self._set("sweep", settings)

    def callbacks(self, *callbacks: Any) -> Self:
        """Callbacks: classes, import paths or ``{"use": ..., key: value}``; they replace others."""
        self._check_open()
        self._values["callbacks"] = copy.deepcopy([_named(c) for c in callbacks])
        return self

    def debugging(self, *, seed: Any = NotProvided, name: Any = NotProvided) -> Self:
        """The seed of every random number, and the name of the run's folder."""
        self._check_open()
        self._values.update(_provided({"seed": seed, "name": name}))
        return self

    def stop(self, criteria: Mapping[str, float] | None = None, /, **more: float) -> Self:
        """Add stop criteria; nested keys (``a/b``) in a dict."""
        self._check_open()
        self._values.setdefault("stop", {}).update({**(criteria or {}), **_provided(more)})
        return self

    def update_from_dict(self, config: Mapping[str, Any]) -> Self:
        """Set settings from a plain dict: whole sections, or RLlib's flat keys."""
        self._check_open()
        known = sections(self._training_class())
        unknown = []
        # The environment comes first, since setting it drops earlier arguments; a schedule last,
        # since it goes before the number beside it.
        order = {"env": 0, "lr_schedule": 2}
        for key, value in sorted(config.items(), key=lambda item: order.get(item[0], 1)):
            if retired.without_effect(key) is not None or (key, value) == ("lr_schedule", None):
                continue
            if key in ("algorithm", "run"):
                self._check_algorithm(_named(value))
            elif key == "env":
                self.environment(value)
            elif key in ("env_config", "model", "stop") and isinstance(value, dict):
                self._update_mapping(key, value)
            elif key == "callbacks":
                self.callbacks(*(value if isinstance(value, (list, tuple)) else [value]))
            elif key in known and isinstance(value, dict):
                self._set(key, value)
            elif key in known[""].model_fields:
                self._values[key] = copy.deepcopy(_named(value))
            elif (address := retired.address_of(key, known)) is not None:
                section, _, field = address.rpartition(".")
                self._set(section, {field: value})
            else:
                unknown.append((key,))
        self._raise_unknown(unknown)
        return self

    def _update_mapping(self, key: str, value: dict[str, Any]) -> None:
        if key == "env_config":
            self.environment(env_config=value)
        elif key == "stop":
            self.stop(value)
        else:
            new = retired.table("successors")
            translated = {
                new.get(name, f"model.{name}").removeprefix("model."): item
                for name, item in value.items()
            }
            own = translated.pop("custom_model_config", None)
            self.model(**translated, **({} if own is None else own))

    def experiment(self) -> ExperimentConfig:
        """The checked, frozen experiment. Raises ConfigError with all its problems."""
        env = str(self._values.get("env", {}).get("use", "env")).rpartition(":")[2]
        name = f"{self.algorithm.rpartition(':')[2]}_{env}".lower().replace("/", "-")
        values = {"name": name, **copy.deepcopy(self._values)}
        return resolve(from_plain(values, self._origin)).experiment

    def build(self, **kwargs: Any) -> Any:
        """Build the algorithm, and freeze the builder (`copy()` makes one that is not frozen)."""
        experiment = self.experiment()
        self._frozen = True
        return algorithm_class(self.algorithm)(experiment, **kwargs)

    def copy(self) -> Self:
        """An independent builder with the same settings, not frozen."""
        duplicate = type(self)()
        duplicate._values = copy.deepcopy(self._values)
        return duplicate

    def to_dict(self) -> dict[str, Any]:
        """The settings so far, by section."""
        return copy.deepcopy(self._values)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            message = f"{type(self).__name__}.{name} cannot be set; its methods take the settings"
            raise AttributeError(message)
        super().__setattr__(name, value)

    def _set(self, section: str, settings: Mapping[str, Any]) -> Self:
        self._check_open()
        given = _with_names(_provided(settings))
        if section == "evaluation" and callable(settings.get("env")):
            given["env"] = {"use": _named(settings["env"])}
        fields = sections(self._training_class())[section].model_fields
        names_code = given.get("use") or self._values.get("model", {}).get("use")
        if section != "model" or names_code is None:
            self._raise_unknown([(section, key) for key in given if key not in fields])
        self._values.setdefault(section, {}).update(copy.deepcopy(given))
        return self

    def _raise_unknown(self, paths: Sequence[tuple[str, ...]]) -> None:
        messages = [(".".join(path), unknown_key(path, self._training_class())) for path in paths]
        if messages:
            raise ConfigError([Problem(self._origin, *message) for message in messages])

    def _check_algorithm(self, name: Any) -> None:
        if name != self.algorithm:
            message = f"this is a builder of {self.algorithm}, not of {name}"
            raise ConfigError([Problem(self._origin, "algorithm", message)])

    def _training_class(self) -> type[TrainingConfig]:
        return algorithm_class(self.algorithm).Training

    def _check_open(self) -> None:
        if self._frozen:
            raise AttributeError(f"this {type(self).__name__} was built and is frozen; copy() it")

    @property
    def _origin(self) -> Origin:
        return Origin(type(self).__name__)


def experiment_of(algorithm: Any, given: Any, old: Mapping[str, Any]) -> ExperimentConfig:
    """The experiment that an algorithm's class is called with.

    Raises:
        TypeError: it is called like RLlib's classes, with a dict or with ``old`` arguments.
    """
    experiment = given.experiment() if isinstance(given, AlgorithmConfig) else given
    if old or not isinstance(experiment, ExperimentConfig):
        call = f"{algorithm.Config.__name__}(config, env=env).build()"
        raise TypeError(f"{algorithm.__name__} takes an experiment: write {call}")
    return experiment


GivenExperiment = ExperimentConfig | Loaded | AlgorithmConfig | Mapping[str, Any] | str | Path
"""An experiment in one of the forms that `given_experiment` takes."""


def given_experiment(
    given: GivenExperiment, overrides: Sequence[str] = ()
) -> tuple[ExperimentConfig, Loaded | None]:
    """The checked experiment of a file, a dict, or a builder, and where its values stand.

    Args:
        given: path of a file or name of a shipped one, a dict of the keys of a file, a builder, an
            experiment, or the result of `load`.
        overrides: ``KEY=VALUE`` texts, merged over a file or a dict.

    Raises:
        ConfigError: the experiment is invalid. TypeError: an argument has another type.
    """
    if isinstance(given, str | Path):
        given = load(given, overrides)
    elif isinstance(given, Mapping):
        given = load_tree(from_plain(dict(given), Origin("dict")), "", overrides)
    elif overrides:
        raise TypeError("overrides apply to a file or a dict, not to a finished experiment")
    if isinstance(given, Loaded):
        return given.experiment, given
    experiment = given.experiment() if isinstance(given, AlgorithmConfig) else given
    if not isinstance(experiment, ExperimentConfig):
        raise TypeError(
            "expected the path of an experiment file, a dict of its keys, a builder such as "
            f"PPOConfig(), or an experiment, not {type(given).__name__}"
        )
    return experiment, None


def _provided(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value is not NotProvided}


def _named(value: Any) -> Any:
    """Replace classes and functions by their names, also in lists and as the `use` of a dict."""
    if callable(value):
        return code_name(value)
    if isinstance(value, list | tuple):
        return [_named(item) for item in value]
    if isinstance(value, dict) and callable(value.get("use")):
        return {**value, "use": code_name(value["use"])}
    return value


def _path_text(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else copy.deepcopy(value)


def _with_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _named(value) if key in _CODE else value for key, value in settings.items()}


def _policy(own: Any) -> Any:
    """One of `multi_agent.policies`: its settings, or the class of a `Policy`."""
    if not isinstance(own, dict):
        return {"use": _named(own)} if callable(own) else own
    parts = {key: _with_names(part) for key, part in own.items() if isinstance(part, dict)}
    return {**_named(own), **parts}
