"""Translation of rl-baselines3-zoo's files, ``{env: {n_envs, n_timesteps, policy, ...}}``.

Owns: reading this form, and the arithmetic from Stable-Baselines3's settings to rlrun's. Each key
is translated, refused with a reason, or listed as without effect. Settings that a file omits get
the defaults of Stable-Baselines3, from zoo_tables.yaml. Text that the zoo evaluates as Python is
parsed and never run. Must not know: types and bounds of values, which are checked afterwards.
"""

import ast
from functools import partial
from typing import Any

from rlrun.config.env_checks import ATARI_ID
from rlrun.config.problems import ConfigError, Origin, Problem
from rlrun.config.registry import no_such, suggestion
from rlrun.config.translation import OldSettings, Translation, chosen_entry
from rlrun.config.yaml_tree import Node, from_plain, read_tables

SB3 = "Stable-Baselines3"
_DEFAULT = Origin(f"default of {SB3}")
_ATARI_WRAPPERS = ("AtariWrapper", "AtariPreprocessing")

_tables = partial(read_tables, "zoo_tables.yaml")


def is_zoo(tree: Node) -> bool:
    """Whether a file has the zoo's form: environments, each with settings and `n_timesteps`."""
    if not isinstance(tree.value, dict) or "algorithm" in tree.value:
        return False
    return any(
        isinstance(node.value, dict) and "n_timesteps" in _merged(node)
        for node in tree.value.values()
    )


def translate_zoo(tree: Node, algorithm: str, name: str | None = None) -> Translation:
    """Translate the settings for the environment `name`; a file's only entry may have another name.

    An Atari game without an entry gets the settings of `atari`.

    Args:
        algorithm: algorithm of the settings, which is not in the file.

    Raises:
        ConfigError: with all problems.
    """
    is_game = name is not None and name not in tree.value and ATARI_ID.search(name)
    entry = (
        "atari" if is_game and "atari" in tree.value else chosen_entry(tree, name, "environment")
    )
    if algorithm not in _RULES:
        kinds = ", ".join(_RULES)
        message = f"only {kinds} are translated, not {algorithm}; name one, as in algorithm=PPO"
        raise ConfigError([Problem(tree.origin, "algorithm", message)])
    node = tree.value[entry]
    if not isinstance(node.value, dict):
        raise ConfigError([Problem(node.origin, entry, "expected keys and values")])
    settings = _ZooSettings(str(name) if is_game else entry, algorithm, node)
    settings.translate()
    return settings.finish(node.origin, node.origin, algorithm)


def _merged(node: Node) -> dict[str, Node]:
    """The entries of a mapping; its own take precedence over inherited ones (``<<: *anchor``)."""
    below = node.value.get("<<")
    listed = [] if below is None else below.value if isinstance(below.value, list) else [below]
    inherited: dict[str, Node] = {}
    for each in listed:
        if not isinstance(each.value, dict):
            message = "expected settings to inherit, or a list of them: *name or [*first, *second]"
            raise ConfigError([Problem(each.origin, "<<", message)])
        inherited = {**_merged(each), **inherited}  # The first of a list takes precedence.
    return {**inherited, **{key: entry for key, entry in node.value.items() if key != "<<"}}


class _ZooSettings(OldSettings):
    """The translation of one environment's settings."""

    library, default = SB3, _DEFAULT

    def __init__(self, name: str, algorithm: str, node: Node) -> None:
        super().__init__(name)
        self.kind, self.node = algorithm, node
        self.given = _merged(node)
        self.updates_per_step = 1.0

    def translate(self) -> None:
        """Fill `values`, and collect problems."""
        for name, default in _tables()["defaults"][self.kind].items():
            self.values[name] = from_plain(default, _DEFAULT)
            self.sources[name] = _DEFAULT.source
        for key, node in self.given.items():
            self._key(key, node)
        if self.number("n_timesteps") is None:
            self.refuse(self.node, "n_timesteps", "expected the number of env steps of the run")
            return
        self._env()
        for name, address in _tables()["same"].items():
            if name in self.values:
                self.derive(address, self.value(name), name)
        for name, address in _tables()["schedules"].items():
            if name in self.values:
                self._schedule(name, address)
        self._model()
        self._normalize()
        _RULES[self.kind](self)
        for name in [name for name in self.values if "." not in name and name not in _ALONE]:
            self.take(name)

    def _key(self, key: str, node: Node) -> None:
        """Read one key of the file, or of its `policy_kwargs` and `optimizer_kwargs`."""
        try:
            node = from_plain(_parsed(node.plain()), node.origin)
        except ValueError:
            self.refuse(node, key, "expected a literal value, as Python code is not run")
            return
        optional = _tables()["optional"]
        known = {*_tables()["defaults"][self.kind], *optional["all"], *optional[self.kind]}
        if key in ("policy_kwargs", "optimizer_kwargs") and isinstance(node.value, dict):
            for inner, below in node.value.items():
                self._key(inner, below)
        elif node.value is None or (key, node.value) == ("vec_env_class", "dummy"):
            return
        elif (reason := _refusal(key, node.value)) is not None:
            self.refuse(node, key, reason)
        elif key in known:
            self.values[key], self.sources[key] = node, key
        elif key not in _tables()["without_effect"]:
            names = [*known, *_tables()["without_effect"], *_tables()["refused"]]
            self.refuse(node, key, f"{self.kind} of {SB3} has no such key{suggestion(key, names)}")
        else:
            self.ignore(node, key, _tables()["without_effect"][key])

    def _env(self) -> None:
        if self.name in _tables()["stand_for"]:
            what = _tables()["stand_for"][self.name]
            message = f"this entry is for {what}; copy it under the name of an environment"
            message += ", or write name=ALE/Pong-v5" if self.name == "atari" else ""
            self.refuse(self.node, "env", message)
        name = read_tables("rllib_tables.yaml")["env_ids"].get(self.name, self.name)
        arguments = self.value("env_kwargs", {})
        env = {"use": name, **arguments} if isinstance(arguments, dict) and arguments else name
        self.set("env", env, self.node, "the name of the entry")
        steps = int(self.number("n_timesteps"))
        self.set("stop", {"env_steps": steps}, self.values["n_timesteps"], "n_timesteps")
        self.derive("env_runners.num_envs_per_env_runner", self.value("n_envs"), "n_envs")
        if self.value("vec_env_class") == "subproc":
            self.derive("env_runners.gym_env_vectorize_mode", "async", "vec_env_class")
        self._wrappers()

    def _wrappers(self) -> None:
        written = self.value("env_wrapper", [])
        wrappers = []
        for wrapper in written if isinstance(written, list) else [written]:
            named = wrapper if isinstance(wrapper, dict) else {str(wrapper): {}}
            for path, kwargs in named.items():
                wrappers.append((path, kwargs if isinstance(kwargs, dict) else {}))
                if kwargs is not None and not isinstance(kwargs, dict):
                    self.refuse(self.node, "env_wrapper", f"{path}: expected keys and values")
        atari = [path for path, _ in wrappers if path.endswith(_ATARI_WRAPPERS)]
        uses = [
            {"use": _class_path(path), **kwargs} for path, kwargs in wrappers if path not in atari
        ]
        if atari:
            reason = "env_runners.preprocessor_pref: deepmind does the same, and stacks 4 frames"
            self.ignore(self.values["env_wrapper"], "env_wrapper", reason)
        stack = self.number("frame_stack")
        if stack is not None and not (atari and stack == 4):
            uses.append({"use": "FrameStackObservation", "stack_size": stack})
        if uses:
            source = "env_wrapper" if "env_wrapper" in self.values else "frame_stack"
            self.derive("env_runners.env_wrappers", uses, source)

    def _normalize(self) -> None:
        """Translate VecNormalize, which the zoo uses in training and evaluation."""
        wanted = self.value("normalize")
        settings = wanted if isinstance(wanted, dict) else {}
        node = self.values["normalize"]
        for key in settings:
            if key not in ("norm_obs", "norm_reward", "gamma"):
                self.refuse(node, "normalize", f"{key}: observations and rewards are clipped at 10")
        if wanted and settings.get("norm_obs", True):
            self.derive("env_runners.observation_filter", "MeanStdFilter", "normalize")
        if wanted and settings.get("norm_reward", True):
            self.derive("connectors.normalize_rewards", True, "normalize")

    def _model(self) -> None:
        if (policy := self.value("policy")) not in _tables()["policies"]:
            is_recurrent = str(policy).endswith("LstmPolicy")
            message = _tables()["recurrent" if is_recurrent else "own_policy"]
            self.refuse(self.values["policy"], "policy", message)
        self._layers(after_images=policy == "CnnPolicy")
        name = str(self.value("activation_fn"))
        activation = _tables()["activations"].get(name)
        if activation is None:
            message = no_such("activation", name, _tables()["activations"])
            self.refuse(self.values["activation_fn"], "activation_fn", message)
        self.derive("model.activation", activation, "activation_fn")

    def _layers(self, *, after_images: bool) -> None:
        """Translate ``[64, 64]``, ``dict(pi=[64], vf=[64])``, or before the dict shared layers."""
        node, own = self.values["net_arch"], self.value("net_arch")
        shared: list[Any] = []
        if isinstance(own, list) and own and isinstance(own[-1], dict):
            *shared, own = own
        if isinstance(own, dict):
            values = own.get("vf", own.get("qf", []))
            own = own.get("pi", [])
            if values != own:
                self.derive("model.value_hidden", values, "net_arch")
        if after_images and node.origin == _DEFAULT and self.kind != "SAC":
            own = []
        if shared and (after_images or self.kind not in ("PPO", "A2C")):
            message = "only PPO and A2C share layers before their own, and not after convolutions"
            self.refuse(node, "net_arch", message)
        if not shared and not after_images:
            self.derive("model.hidden", own, "net_arch")
            return
        self.derive("model.hidden", shared, "net_arch")
        if shared:
            self.derive("model.share_layers", True, "net_arch")
        if own:
            self.derive(_AFTER_OTHERS[self.kind], own, "net_arch")

    def _schedule(self, name: str, address: str) -> None:
        value = self.value(name)
        if not isinstance(value, str):
            self.derive(address, value, name)
            return
        kind, _, number = value.partition("_")
        try:
            points = [[0, float(number)], [int(self.number("n_timesteps")), 0.0]]
        except ValueError:
            kind = ""
        if kind != "lin":
            message = "expected a number, or a schedule such as lin_0.001"
            self.refuse(self.values[name], name, message)
            return
        self.derive(address, points, name, "linear to 0")

    def on_policy(self) -> None:
        """Translate the settings that PPO and A2C share."""
        self.state_noise("n_steps")
        if self.value("ortho_init") is False:
            self.derive("model.init", "uniform", "ortho_init")
        self.take("ortho_init")
        steps, envs = (int(self.number(name, 1)) for name in ("n_steps", "n_envs"))
        rows = steps * envs
        why = f"{steps} steps of {envs} environment{'s' if envs > 1 else ''}"
        self.derive("training.train_batch_size", rows, "n_steps", why)
        if rows < _ITERATION:
            address, least = "report.min_sample_timesteps_per_iteration", "env steps of a result"
            self.derive(address, _ITERATION, "n_steps", f"{least}, at least")
        self.derive("training.entropy_coeff", self.value("ent_coef"), "ent_coef")
        if (coefficient := self.value("vf_coef")) is not None:
            doubled = 2 * coefficient if isinstance(coefficient, int | float) else coefficient
            why = "doubled, as rlrun halves the squared error"
            self.derive("training.vf_loss_coeff", doubled, "vf_coef", why)

    def state_noise(self, steps: str) -> None:
        """Translate gSDE, state-dependent exploration.

        Args:
            steps: the setting of the steps after which noise is drawn if no other is given.
        """
        wanted = self.value("use_sde", False)
        if wanted:
            every = "sde_sample_freq" if self.number("sde_sample_freq") else steps
            self.derive("model.use_sde", wanted, "use_sde")
            self.derive("model.sde_sample_freq", self.value(every), every)
        if wanted or self.kind != "SAC":
            self.derive("model.log_std_init", self.value("log_std_init"), "log_std_init")
            self.take("log_std_init")
        unlike = {"clip_mean": "means are not clipped"}
        if self.value("use_expln"):
            unlike["use_expln"] = "standard deviations above 1 are exponentials, too"
        for name in _OF_STATE_NOISE:
            why = unlike.get(name) if wanted else "use_sde is not true"
            if why and self.is_given(name):
                self.ignore(self.values[name], name, why)
            self.take(name)

    def off_policy(self) -> None:
        """Translate the settings that DQN and SAC share."""
        every, steps = self.value("train_freq"), self.value("gradient_steps")
        if not all(isinstance(number, int) for number in (every, steps)) or every < 1:
            message = "expected a number of steps; rlrun does not learn after whole episodes"
            self.refuse(self.values["train_freq"], "train_freq", message)
            return
        envs, size = int(self.number("n_envs", 1)), self.number("batch_size", 1)
        env_steps = every * envs
        self.updates_per_step = (env_steps if steps < 0 else steps) / env_steps
        if self.updates_per_step == 0:
            message = "expected 1 or more, or -1"
            self.refuse(self.values["gradient_steps"], "gradient_steps", message)
            return
        self.derive("env_runners.rollout_fragment_length", every, "train_freq")
        whole = -(-_ITERATION // env_steps) * env_steps
        why = "the length of an iteration, in whole rounds"
        self.derive("training.train_batch_size", whole, "train_freq", why)
        self.derive("training.minibatch_size", self.value("batch_size"), "batch_size")
        why = f"batch_size * gradient steps / {env_steps} env steps"
        intensity = size * self.updates_per_step
        self.derive("training.training_intensity", intensity, "gradient_steps", why)
        starts = self.value("learning_starts")
        address = "training.num_steps_sampled_before_learning_starts"
        least = max(starts, 1) if isinstance(starts, int) else starts
        self.derive(address, least, "learning_starts")
        self.derive("exploration.random_steps", starts, "learning_starts", "random actions")
        self.derive("training.n_step", self.value("n_steps"), "n_steps")


_ITERATION = 1000
_AFTER_OTHERS = {
    **dict.fromkeys(("PPO", "A2C"), "model.head_hidden"),
    **{"DQN": "training.hiddens", "SAC": "model.hidden"},
}
"""Algorithm -> setting of the layers after convolutions, or after shared ones."""
_OF_STATE_NOISE = (
    *("use_sde", "sde_sample_freq", "use_expln", "full_std", "use_sde_at_warmup"),
    *("clip_mean", "log_std_init"),
)
_ALONE = ("env", "seed", "stop")


def _ppo(old: _ZooSettings) -> None:
    old.on_policy()
    rows = old.value("training.train_batch_size")
    size = min(old.number("batch_size", rows), rows)
    old.derive("training.minibatch_size", size, "batch_size")
    wanted = "minibatch" if old.value("normalize_advantage") else None
    old.derive("training.normalize_advantages", wanted, "normalize_advantage")


def _a2c(old: _ZooSettings) -> None:
    old.on_policy()
    if old.value("normalize_advantage"):
        message = "rlrun's A2C does not normalise advantages; remove this key"
        old.refuse(old.values["normalize_advantage"], "normalize_advantage", message)
    if "optimizer_class" in old.values:  # RMSpropTFLike, with epsilon under the root, as in rlrun
        old.take("training.adam_epsilon")
        old.derive("training.optimizer", "rmsprop", "optimizer_class")
        old.derive("training.rmsprop_decay", 0.99, "optimizer_class")
        old.derive("training.rmsprop_epsilon", old.value("eps", 1e-8), "optimizer_class")
    elif old.value("use_rms_prop"):
        old.derive("training.optimizer", "rmsprop", "use_rms_prop")
        old.derive("training.rmsprop_decay", 0.99, "use_rms_prop")
        old.derive("training.rmsprop_start", 0.0, "use_rms_prop", "as torch has it")
        epsilon, why = old.number("rms_prop_eps", 1e-5), "squared, as rlrun adds it under the root"
        old.derive("training.rmsprop_epsilon", float(f"{epsilon**2:.6g}"), "rms_prop_eps", why)
    elif "eps" not in old.values:
        old.derive("training.adam_epsilon", 1e-5, "use_rms_prop")


def _dqn(old: _ZooSettings) -> None:
    old.off_policy()
    if old.value("tau") != 1.0:
        old.derive("training.tau", old.value("tau"), "tau")
    interval = "target_update_interval"
    old.derive("training.target_network_update_freq", old.value(interval), interval)
    for name in ("double_q", "dueling"):
        old.derive(f"training.{name}", False, SB3, "its DQN has none")
    first, last = (old.value(f"exploration_{name}_eps") for name in ("initial", "final"))
    fraction = old.number("exploration_fraction", 0.1)
    end = max(int(fraction * old.number("n_timesteps")), 1)
    why = f"linear over {fraction:g} of the run"
    old.derive("exploration.epsilon", [[0, first], [end, last]], "exploration_final_eps", why)


def _sac(old: _ZooSettings) -> None:
    old.off_policy()
    if old.problems:
        return
    old.derive("model.init", "uniform", SB3, "torch's own initial weights")
    if old.value("use_sde") and old.value("use_sde_at_warmup"):
        old.derive("exploration.random_steps", 0, "use_sde_at_warmup")
    old.state_noise("train_freq")
    old.derive("training.tau", old.value("tau"), "tau")
    interval = int(old.number("target_update_interval", 1))
    frequency = max(round(interval / old.updates_per_step), 1) if interval > 1 else 1
    why = f"in env steps, {old.updates_per_step:g} updates each" if interval > 1 else ""
    name = "target_update_interval"
    old.derive("training.target_network_update_freq", frequency, name, why)
    alpha = old.value("ent_coef")
    if isinstance(alpha, str) and alpha.partition("_")[0] == "auto":
        old.derive("training.initial_alpha", _number(alpha.partition("_")[2], 1.0), "ent_coef")
    else:
        old.derive("training.initial_alpha", alpha, "ent_coef", "constant, by training.alpha_lr: 0")
        old.derive("training.alpha_lr", 0.0, "ent_coef")
    if "target_entropy" in old.values and old.value("target_entropy") != "auto":
        old.derive("training.target_entropy", old.value("target_entropy"), "target_entropy")


_RULES = {"PPO": _ppo, "A2C": _a2c, "DQN": _dqn, "SAC": _sac}


def _refusal(key: str, value: Any) -> str | None:
    """Why a setting with this value is not translated, or None."""
    only = _tables()["only"].get(key)
    return only[1] if only is not None and value != only[0] else _tables()["refused"].get(key)


def _number(text: str, default: float) -> Any:
    try:
        return float(text) if text else default
    except ValueError:
        return text


def _class_path(path: str) -> str:
    """``gymnasium.wrappers.Name`` -> ``Name``; another ``package.module.Name`` -> with a colon."""
    module, _, name = path.rpartition(".")
    return name if module in ("gymnasium.wrappers", "gym.wrappers") else f"{module}:{name}"


def _parsed(value: Any) -> Any:
    """The value of a text that is a Python dict or list, which the zoo would evaluate.

    Raises:
        ValueError: the text looks like one, but holds more than constants and names.
    """
    if not isinstance(value, str) or not value.strip().startswith(("dict(", "{", "[", "(")):
        return value
    try:
        return _constant(ast.parse(value.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from None


def _constant(node: ast.expr) -> Any:
    """The value of an expression of constants; a name such as ``nn.ReLU`` gives its last word."""
    match node:
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
            return {str(each.arg): _constant(each.value) for each in keywords}
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {str(_constant(key)): _constant(value) for key, value in pairs if key}
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_constant(item) for item in items]
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
    raise ValueError("expected constants, and dicts and lists of them")
