"""Translation of RLlib's experiment files, ``{name: {env, run, stop, config}}``, into rlrun's form.

Owns: reading RLlib's form. Each key is translated, refused with a reason, or listed as without
effect. Settings that a file omits get RLlib's defaults, so that an experiment keeps its meaning.
Must not know: types and bounds of values, which are checked after the translation and reported at
the lines of the old file. Names, defaults and reasons are in rllib_tables.yaml and retired.yaml,
the arithmetic for keys with the same name and another meaning is in rllib_rules.py.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from rlrun.config import retired
from rlrun.config.policies import UNREAD_IN_EVALUATION
from rlrun.config.problems import ConfigError, Path, Problem, join
from rlrun.config.registry import algorithm_class, no_such, suggestion
from rlrun.config.rllib_rules import (
    COMMON,
    DEFAULT,
    RLLIB_DEFAULT,
    RULES,
    RLlibSettings,
    for_all_learners,
    tables,
)
from rlrun.config.schema import ExperimentConfig, sections
from rlrun.config.translation import Translation, chosen_entry
from rlrun.config.yaml_tree import Node, from_plain

_OF_THE_FORM = ("run", "config", "env", "stop")
_GRID = "grid_search"
_SAME_ACTIVATION = "policy and critics must have the same activation"


def is_rllib(tree: Node) -> bool:
    """Whether a file has RLlib's form: experiments by name, each with `run`, `env` or `config`."""
    if not isinstance(tree.value, dict) or "algorithm" in tree.value:
        return False
    unknown = [node for key, node in tree.value.items() if key not in ExperimentConfig.model_fields]
    return any(
        isinstance(node.value, dict) and any(key in node.value for key in _OF_THE_FORM)
        for node in unknown
    )


def translate(tree: Node, name: str | None = None) -> Translation:
    """Translate the experiment `name`; a file's only experiment may have another name.

    Raises:
        ConfigError: with all problems.
    """
    name = chosen_entry(tree, name, "experiment")
    experiment = tree.value[name]
    if not isinstance(experiment.value, dict):
        message = "expected an experiment of RLlib with the keys run, env and config"
        raise ConfigError([Problem(experiment.origin, name, message)])
    grids = dict(_grids(experiment, ()))
    problems = [
        Problem(node.origin, join((name, *path)), "expected a list of at least one value")
        for path, node in grids.items()
        if not isinstance(node.value, list) or not node.value
    ]
    if problems:
        raise ConfigError(problems)
    first = experiment
    for path, node in grids.items():
        first = _with(first, path, node.value[0])
    translator = _Translator(name, first)
    translator.translate()
    for path, node in grids.items():
        variants = [_Translator(name, _with(first, path, value)) for value in node.value]
        translator.vary(path, node, variants)
    return translator.finished()


def _grids(node: Node, path: Path) -> Iterator[tuple[Path, Node]]:
    """The path of each ``grid_search``, and its list of values."""
    if not isinstance(node.value, dict):
        return
    if path and list(node.value) == [_GRID]:
        yield path, Node(node.value[_GRID].value, node.origin)
        return
    for key, below in node.value.items():
        yield from _grids(below, (*path, key))


def _with(node: Node, path: Path, value: Node) -> Node:
    if not path:
        return value
    return Node({**node.value, path[0]: _with(node.value[path[0]], path[1:], value)}, node.origin)


class _Translator(RLlibSettings):
    """The translation of one experiment, whose keys and values have no grids."""

    def __init__(self, name: str, experiment: Node) -> None:
        super().__init__(name)
        self.experiment = experiment
        self.sweep: dict[str, Node] = {}
        self.networks: dict[str, list[tuple[str, Node]]] = {}  # settings of single networks

    def translate(self) -> None:
        """Fill `values`, and collect problems."""
        known = {"env": self._env, "run": self._run, "stop": self._stop, "config": self._config}
        for key in ("run", *(key for key in self.experiment.value if key != "run")):
            node = self.experiment.value.get(key)
            if node is None:
                self.refuse(self.experiment, "run", "missing; name it, as in run: PPO")
            elif key in known:
                known[key](node)
            else:
                self._beside_config(key, node)
        if "env" not in self.values and "env" not in self.experiment.value:
            self.refuse(self.experiment, "env", "missing; name it, as in env: CartPole-v1")
        self._fill_in()

    def _fill_in(self) -> None:
        """Add RLlib's defaults, and apply the rules of the algorithm."""
        for name, value in tables()["defaults"][self.run].items():
            if name not in self.values:
                self.values[name] = from_plain(value, RLLIB_DEFAULT)
                self.sources[name] = DEFAULT
        self._agents()
        for rule in (for_all_learners, *RULES[self.algorithm], *COMMON):
            rule(self)
        for name in [name for name in self.values if name in tables()["kept"]]:
            node = self.values.pop(name)
            if node.origin != RLLIB_DEFAULT:
                self.refuse(node, f"config.{name}", f"{self.run} has no such key")

    def _run(self, node: Node) -> None:
        run = node.value
        if isinstance(run, str) and run in tables()["algorithms"]:
            self.run, self.algorithm = run, tables()["algorithms"][run]
        elif isinstance(run, str) and run in tables()["not_here"]:
            self.refuse(node, "run", f"rlrun has no {run}; {tables()['not_here'][run]}")
        else:
            named = str(node.plain())[:80]
            self.refuse(node, "run", no_such("algorithm", named, tables()["algorithms"]))

    def _stop(self, node: Node) -> None:
        if not isinstance(node.value, dict):
            self.refuse(node, "stop", "expected keys and values")
            return
        stop = {retired.STOP_KEYS.get(key, key): value for key, value in node.value.items()}
        self.values["stop"], self.sources["stop"] = Node(stop, node.origin), "stop"

    def _beside_config(self, key: str, node: Node) -> None:
        """Translate a key beside `config`, which is Ray Tune's."""
        reason = tables()["without_counterpart"].get(key)
        if key == "num_samples":
            if node.value != 1:
                self.sweep["seeds"] = node
        elif key in ("checkpoint_score_attr", "checkpoint_score_attribute"):
            metric = str(node.value)
            name = metric.removeprefix("min-")
            self.set("checkpoint.metric", retired.STOP_KEYS.get(name, name), node, key)
            if metric != name:
                self.set("checkpoint.mode", "min", node, key)
        elif key == "checkpoint_config" and isinstance(node.value, dict):
            for inner, below in node.value.items():
                self._beside_config(inner, below)
        elif key in ("checkpoint_freq", "checkpoint_frequency") and node.value == 0:
            self.set("checkpoint.every", None, node, key)
        elif reason is not None:
            self.ignore(node, key, reason)
        elif (successor := retired.table("successors").get(key, "")).startswith("checkpoint."):
            self.set(successor, node.value, node, key)
        else:
            names = (*_OF_THE_FORM, "num_samples", "checkpoint_freq", "checkpoint_at_end")
            self.refuse(node, key, no_such("key beside config", key, names))

    def _config(self, node: Node) -> None:
        if not isinstance(node.value, dict):
            self.refuse(node, "config", "expected keys and values")
            return
        known = sections(algorithm_class(self.algorithm).Training)
        for key, below in node.value.items():
            mapping = tables()["spellings"].get(key, key)
            if mapping in tables()["mappings"] and isinstance(below.value, dict):
                for inner, item in below.value.items():
                    self._key(f"{mapping}.{inner}", f"config.{key}.{inner}", item, known)
            elif mapping in tables()["mappings"] and below.value is not None:
                self.refuse(below, f"config.{key}", "expected keys and values")
            elif mapping not in tables()["mappings"]:
                self._key(key, f"config.{key}", below, known)
        self._one_of_two_networks()

    def _one_of_two_networks(self) -> None:
        """Refuse an activation of one network of SAC that differs from RLlib's for the other."""
        for name, given in self.networks.items():
            default, (written, node) = tables()["defaults"]["SAC"].get(name), given[0]
            is_only = len({key.split(".")[1] for key, _ in given}) == 1
            if is_only and node.plain() != default:
                message = f"{_SAME_ACTIVATION}; set both, as RLlib's default is {default!r}"
                self.refuse(node, written, message)

    def _key(self, name: str, written: str, node: Node, known: dict[str, Any]) -> None:
        """Translate one key of `config`; in `name` mappings have the spelling of `ADDRESSES`."""
        own = name.rpartition(".")[2]
        only = tables()["only"].get(name)
        if name == "optimizer":
            self.ignore(node, written, "rlrun has no replay actors")
        elif address := tables()["addresses"].get(f"{self.algorithm}.{name}"):
            self._keep(address, node, written)
        elif only is not None:
            values, why = only
            if node.plain() in values:
                self.ignore(node, written, why)
            else:
                self.refuse(node, written, f"only {values[0]!r} is translated: {why}")
        elif name == "env":
            self._env(node)
        elif (address := _address(name, known)) in _UNREAD:
            self.ignore(node, written, _UNREAD[address])
        elif address is not None:
            self._keep(address, node, written)
        elif (reason := retired.without_effect(own)) is not None:
            self.ignore(node, written, reason)
        elif not (name.startswith("model.") and node.value is None):  # null is RLlib's "none"
            self.refuse(node, written, self._unknown(own, known))

    def _keep(self, name: str, node: Node, written: str) -> None:
        if node.value is None and written.endswith("_schedule"):
            return
        earlier = self.values.get(name)
        if earlier is not None and written.endswith((".lr", ".entropy_coeff")):
            return  # its schedule takes precedence
        if name.startswith("model.") and earlier is not None and earlier.plain() != node.plain():
            other = f"{self.sources[name]} has another value"
            self.refuse(node, written, _SAME_ACTIVATION if "activation" in name else other)
        mapping = written.removeprefix("config.").rpartition(".")[0]
        of_a_network = mapping not in ("", *tables()["of_all_networks"])
        if name == "model.activation" and of_a_network:
            self.networks.setdefault(name, []).append((written, node))
        self.values[name], self.sources[name] = node, written.removeprefix("config.")

    def _unknown(self, key: str, known: dict[str, Any]) -> str:
        advice = retired.advice(key)
        if advice is not None:
            return f"not translated; {advice.removeprefix('retired; ')}"
        names = [field for schema in known.values() for field in schema.model_fields]
        names += [*retired.table("successors"), *retired.table("no_effect")]
        return f"unknown key{suggestion(key, names)}"

    def _agents(self) -> None:
        """Translate arguments of environments, and the policies of several agents."""
        name, policies = self.value("env"), self.values.pop("multiagent.policies", None)
        mapping = self.values.pop("multiagent.policy_mapping_fn", None)
        if (arguments := self._arguments("env_config", name)) and "env" in self.values:
            self.values["env"] = from_plain({"use": name, **arguments}, self.values["env"].origin)
        if differing := self._arguments("evaluation_config.env_config", name):
            self.derive("evaluation.env", differing, "evaluation.interval")
            self.sources["evaluation.env"] = "evaluation_config.env_config"
        if policies is None and name in tables()["several_agents"]:
            self.derive("multi_agent.policies", ["default_policy"], DEFAULT)
        elif policies is not None:
            self._policies(policies, mapping)

    def _policies(self, policies: Node, mapping: Node | None) -> None:
        written, ids = "config.multiagent.policies", policies.plain()
        if isinstance(ids, dict):
            for policy_id, spec in ids.items():
                parts = spec if isinstance(spec, list) else [spec]
                if any(parts):
                    message = "a policy with its own class, spaces or settings is not translated;"
                    message += " write it in multi_agent.policies"
                    self.refuse(policies.value[policy_id], f"{written}.{policy_id}", message)
            ids = list(ids)
        self.set("multi_agent.policies", ids, policies, "multiagent.policies")
        if mapping is None or not isinstance(ids, list):
            return
        kind = mapping.plain()
        kind = kind.get("type") if isinstance(kind, dict) else kind
        if isinstance(kind, str) and kind.startswith("ray.") and kind.endswith("PolicyMappingFn"):
            agents = {f"agent_{str(name).removeprefix('p')}": name for name in ids}
            self.set("multi_agent.agents", agents, mapping, "multiagent.policy_mapping_fn")
        else:
            message = "not translated; write multi_agent.agents, as a table or a function"
            self.refuse(mapping, "config.multiagent.policy_mapping_fn", message)

    def _env(self, node: Node) -> None:
        name = node.value
        if not isinstance(name, str):
            message = "expected the name of an environment"
            self.refuse(node, "env", f"{message}; wrap an external one as a gymnasium environment")
            return
        own = name.rpartition(".")[2]
        if name.startswith("ray."):
            if own not in tables()["envs"]:
                message = f"{own} does not come with rlrun; name a class of your own"
                self.refuse(node, "env", f'{message}: "package.module:{own}"')
            name = tables()["envs"].get(own, own)
        elif "/" not in name and "-v" not in name and own != name:
            name = f"{name.rpartition('.')[0]}:{own}"
        self.set("env", tables()["env_ids"].get(name, name), node, "env")

    def _arguments(self, name: str, env: Any) -> dict[str, Any]:
        """The arguments of the environment under rlrun's names."""
        node = self.values.pop(name, None)
        if node is None:
            return {}
        given = node.plain()
        if not isinstance(given, dict):
            self.refuse(node, f"config.{name}", "expected keys and values")
            return {}
        if env not in tables()["envs"].values():
            return given
        arguments = given["config"] if isinstance(given.get("config"), dict) else given
        renamed = {}
        for key, value in arguments.items():
            new = tables()["env_arguments"].get(key, key)
            if new is None:
                self.ignore(node, f"config.{name}.{key}", f"{env} has no such argument")
            else:
                renamed[new] = value
        return renamed

    def vary(self, path: Path, node: Node, variants: Sequence["_Translator"]) -> None:
        """Vary the setting that the values of a grid change."""
        if path == ("config", "seed"):
            if "seeds" in self.sweep:
                self.refuse(node, "config.seed", "it contradicts num_samples; remove one of them")
            self.sweep["seeds"] = node
            return
        for variant in variants:
            variant.translate()
            self.problems += [one for one in variant.problems if one not in self.problems]
        names = dict.fromkeys(name for variant in variants for name in variant.values)
        values = {
            name: [variant.value(name) for variant in variants]
            for name in names
            if any(variant.value(name) != self.value(name) for variant in variants)
        }
        if len(values) > 1:
            message = f"the values change {' and '.join(values)} together; write a file for each"
            self.refuse(node, join(path), message)
        space = self.sweep.setdefault("space", Node({}, node.origin))
        for name, grid in values.items():
            space.value[name] = Node({"grid": from_plain(grid, node.origin)}, node.origin)

    def finished(self) -> Translation:
        """The translation. Raises ConfigError if there were problems.

        Of its section `sweep`, `rlrun train` takes the first seed and the first values.
        """
        space, seeds = self.sweep.get("space"), self.sweep.get("seeds")
        if space is not None and not space.value:
            del self.sweep["space"]
        if seeds is not None and isinstance(seeds.value, list) and seeds.value:
            self.set("seed", seeds.value[0].plain(), seeds, "seed")
        if self.sweep:
            self.values["sweep"] = Node(self.sweep, self.experiment.origin)
            self.sources["sweep"] = _GRID
        run = self.experiment.value.get("run", self.experiment)
        return self.finish(self.experiment.origin, run.origin, self.algorithm)


_UNREAD = {f"evaluation.env_runners.{name}": why for name, why in UNREAD_IN_EVALUATION.items()}


def _address(name: str, known: dict[str, Any]) -> str | None:
    """The address in rlrun of a key of `config`, or None; its own name if a rule translates it."""
    mapping, _, key = name.rpartition(".")
    if name in ("seed", "callbacks", *tables()["kept"]):
        address: str | None = name
    elif name in tables()["addresses"]:
        address = tables()["addresses"][name]
    elif mapping == "model":
        own = retired.table("successors").get(key, f"model.{key}")
        is_own = own.removeprefix("model.") in known["model"].model_fields
        address = own if is_own else None
    elif mapping == "evaluation_config":
        own = retired.address_of(key, known) or ""
        address = f"evaluation.{own}" if own.startswith("env_runners.") else None
    else:
        address = None if mapping else retired.address_of(key, known)
    return address
