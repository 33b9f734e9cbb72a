"""The arithmetic for keys of RLlib that have the same name and another meaning.

Owns: the rules of each algorithm, which convert old settings to rlrun's meaning; rllib_tables.yaml
has what needs no arithmetic. Must not know: the form of the old file (rllib_file.py).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rlrun.config.problems import Origin
from rlrun.config.registry import no_such
from rlrun.config.schema import MEMORY_SWITCHES
from rlrun.config.translation import OldSettings
from rlrun.config.yaml_tree import Node, from_plain, read_tables

DEFAULT = "default of RLlib 2.4"
"""Source of a value that is not in the old file."""
RLLIB_DEFAULT = Origin(DEFAULT)

tables = partial(read_tables, "rllib_tables.yaml")


class RLlibSettings(OldSettings):
    """The settings of one experiment of RLlib, under the names of `rllib_tables.yaml`.

    Attributes:
        run: algorithm of RLlib.
        algorithm: the algorithm of rlrun.
    """

    library, default = "RLlib", RLLIB_DEFAULT
    run = algorithm = "PPO"

    @property
    def num_runners(self) -> int:
        """The number of env runners that sample."""
        return int(max(self.number("env_runners.num_env_runners", 0), 1))

    @property
    def num_envs(self) -> int:
        """The number of sub-environments of an env runner."""
        return int(self.number("env_runners.num_envs_per_env_runner", 1))

    def drop(self, name: str, reason: str) -> None:
        """Remove a setting of `config`, and note that it has no effect."""
        node = self.values.pop(name, None)
        if node is not None:
            self.ignore(node, f"config.{name}", reason)


Rule = Callable[[RLlibSettings], None]

_FRAGMENT, _BATCH = "env_runners.rollout_fragment_length", "training.train_batch_size"
_ITERATION = "report.min_sample_timesteps_per_iteration"


def for_all_learners(old: RLlibSettings) -> None:
    """Multiply batch sizes by the number of learners if they are given per learner."""
    learners = int(old.number("learners.num_learners", 0))
    if learners > 1 and old.sources.get(_BATCH, "").endswith("_per_learner"):
        for name in (_BATCH, "training.minibatch_size"):
            if (size := old.number(name)) is not None and old.is_given(name):
                old.derive(name, int(size) * learners, name, f"for each of {learners} learners")


def _whole_batch(old: RLlibSettings, unit: int) -> None:
    """Round the batch size up to a multiple of `unit`, as RLlib samples whole rounds."""
    wanted = old.number(_BATCH)
    if wanted is None or old.value("env_runners.batch_mode") == "complete_episodes":
        return
    steps = max(math.ceil(wanted / unit), 1) * unit
    if steps != wanted:
        old.derive(_BATCH, steps, _BATCH, f"{wanted:g}, rounded up to whole rounds of {unit}")


def _rounds(old: RLlibSettings) -> None:
    """Make a batch whole rounds of all runners, with "auto" a multiple of the environments."""
    length, envs = old.number(_FRAGMENT), old.num_envs
    if length is None:
        _whole_batch(old, envs)
        wanted, least = old.number(_BATCH, 0), envs * old.num_runners
        if wanted < least and old.value("env_runners.batch_mode") != "complete_episodes":
            old.derive(_BATCH, least, _BATCH, "a step of each environment")
    else:
        _whole_batch(old, int(length) * envs * old.num_runners)


def _fragments(old: RLlibSettings) -> None:
    """Make a batch whole fragments of single runners."""
    length = old.number(_FRAGMENT)
    _whole_batch(old, old.num_envs * (1 if length is None else int(length)))


def _sum_of_rows(old: RLlibSettings, num_rows: float) -> None:
    """Scale settings that compare with gradients, as RLlib sums losses over `num_rows` rows."""
    why = "as RLlib sums losses over rows and rlrun averages"
    for name, power in (
        ("training.grad_clip", 1),
        ("training.adam_epsilon", 1),
        ("training.rmsprop_epsilon", 2),
    ):
        if (value := old.number(name)) is not None:
            divisor = f"{num_rows:g}{' squared' if power == 2 else ''}"
            derived = float(f"{value / num_rows**power:.6g}")
            old.derive(name, derived, name, f"/ {divisor}, {why}")


def _sum_over_batch(old: RLlibSettings) -> None:
    _sum_of_rows(old, old.number(_BATCH, 1))


def _sum_over_fragment(old: RLlibSettings) -> None:
    _sum_of_rows(old, old.number(_FRAGMENT, 1) * old.num_envs)


def _kl_loss(old: RLlibSettings) -> None:
    if not old.take("use_kl_loss"):
        old.derive("training.kl_coeff", 0.0, "use_kl_loss", "no KL term")


def _ppo_losses(old: RLlibSettings) -> None:
    _kl_loss(old)
    old.values["training.normalize_advantages"] = from_plain("batch", RLLIB_DEFAULT)
    old.sources["training.normalize_advantages"] = "as RLlib always does"
    clip, why = "training.vf_clip_param", "RLlib clamps the squared error"
    old.derive("training.vf_error_clip", old.value(clip), clip, why)
    old.take(clip)
    coefficient = old.number("training.vf_loss_coeff")
    if coefficient is not None:
        why = "doubled, as rlrun halves the squared error"
        old.derive("training.vf_loss_coeff", 2 * coefficient, "training.vf_loss_coeff", why)


def _vtrace(old: RLlibSettings) -> None:
    if old.value("vtrace", True) is True or old.algorithm == "APPO":
        old.drop("vtrace", "advantages are always V-trace's, which equal GAE's for new samples")
    else:
        message = "IMPALA always corrects with V-trace; use A2C without it"
        old.refuse(old.values.pop("vtrace"), "config.vtrace", message)


def _appo(old: RLlibSettings) -> None:
    _kl_loss(old)
    passes, kept = old.number("training.num_epochs", 1), old.number("minibatch_buffer_size", 1)
    in_turns = passes > 1 and kept > 1
    # RLlib updates the target after more than num_sgd_iter * minibatch_buffer_size env steps.
    num_batches = int(passes * kept // old.number(_BATCH, 1)) + 1
    frequency = num_batches * int(passes if in_turns else 1)
    old.derive("training.target_network_update_freq", frequency, "training.num_epochs", "updates")
    if in_turns:
        uses = "training.circular_buffer_iterations_per_batch"
        old.derive(uses, passes, "training.num_epochs", "uses of each batch")
        old.derive("training.circular_buffer_num_batches", kept, "minibatch_buffer_size")
        old.derive("training.num_epochs", 1, "training.num_epochs", "one pass per use")
        old.take("minibatch_buffer_size")
    _impala(old)


def _impala(old: RLlibSettings) -> None:
    old.drop("minibatch_buffer_size", "all passes over a batch are made in a row")


def _replay(old: RLlibSettings) -> None:
    """Convert `train_batch_size`, which is the replayed minibatch in RLlib's DQN and SAC."""
    size = old.number(_BATCH, 1)
    length = old.number(_FRAGMENT)
    is_short = length is None and not old.value("model.use_lstm")
    if is_short:  # "auto", and the default
        length = int(old.number("training.n_step", 1))
        old.derive(_FRAGMENT, length, "training.n_step", "the fragment length of auto")
    round_steps = int(length or 1) * old.num_envs * old.num_runners
    if old.value("training.training_intensity") is None:
        why = f"minibatch {size:g} / {round_steps} env steps per round"
        old.derive("training.training_intensity", size / round_steps, _BATCH, why)
    old.derive("training.minibatch_size", old.value(_BATCH), _BATCH, "RLlib's replayed minibatch")
    old.derive(_BATCH, old.value(_ITERATION), _ITERATION, "the length of an iteration")
    del old.values[_ITERATION]
    _whole_batch(old, round_steps)
    _replay_buffer(old)


def _replay_buffer(old: RLlibSettings) -> None:
    kind, wanted = "replay_buffer_config.type", old.values.pop("prioritized_replay", None)
    is_prioritized = "Prioritized" in str(old.value(kind))
    old.derive("replay.prioritized", is_prioritized, kind)
    old.take(kind)
    if wanted is not None:
        old.set("replay.prioritized", wanted.value, wanted, "prioritized_replay")
    if old.value("replay.prioritized") is not True:
        for name in ("replay.alpha", "replay.beta", "replay.epsilon"):
            if not old.is_given(name):
                old.take(name)
    last = old.values.pop("final_prioritized_replay_beta", None)
    steps = old.take("prioritized_replay_beta_annealing_timesteps") or 20_000
    if last is not None:
        points = [[0, old.value("replay.beta", 0.4)], [steps, last.value]]
        old.set("replay.beta", points, last, "final_prioritized_replay_beta")


def _sequences(old: RLlibSettings) -> None:
    """Convert the capacity of R2D2's buffer, which RLlib counts in sequences."""
    if not old.value("model.use_lstm") or old.run != "R2D2":
        return
    length = old.number("model.max_seq_len", 20) + old.number("replay.burn_in", 0)
    if (capacity := old.number("replay.capacity")) is not None:
        why = f"sequences of {length:g} in RLlib"
        old.derive("replay.capacity", int(capacity * length), "replay.capacity", why)


def _q_network(old: RLlibSettings) -> None:
    if any(old.value(f"model.{name}") for name in MEMORY_SWITCHES):
        node = old.values.pop("training.hiddens")
        old.ignore(node, "config.hiddens", "the streams after a memory have no hidden layers")


def _exploration(old: RLlibSettings) -> None:
    """Convert the exploration of DQN and SAC."""
    kind = old.values.pop(f"{_EXPLORES}type", None)
    name = None if kind is None else str(kind.plain()).rpartition(".")[2]
    if name == "PerWorkerEpsilonGreedy":
        assert kind is not None
        old.set("exploration.epsilon", 0.4, kind, "PerWorkerEpsilonGreedy")
        old.set("exploration.runner_exponent", 7, kind, "PerWorkerEpsilonGreedy")
        for key in filter(old.is_given, _EPSILON):
            old.drop(key, "PerWorkerEpsilonGreedy gives each runner a constant epsilon")
    elif name == "EpsilonGreedy":
        _epsilon(old)
    elif kind is not None and name in tables()["explorations"]:
        old.set("exploration.type", name, kind, "exploration_config.type")
        if name in _NOISES:
            rule, random_steps = _NOISES[name]
            rule(old, kind, name)
            if "exploration.random_steps" not in old.values:
                old.set("exploration.random_steps", random_steps, kind, DEFAULT)
    elif kind is not None:
        message = no_such("exploration", str(name), tables()["explorations"])
        old.refuse(kind, f"config.{_EXPLORES}type", message)
    for key in _EPSILON:
        if not old.is_given(key):
            old.take(key)


_EXPLORES = "exploration_config."
_EPSILON_KEYS = ("epsilon_timesteps", "final_epsilon", "initial_epsilon", "warmup_timesteps")
_EPSILON = tuple(f"{_EXPLORES}{key}" for key in _EPSILON_KEYS)


def _epsilon(old: RLlibSettings) -> None:
    """Convert the first and the last epsilon to a schedule."""
    defaults = tables()["defaults"]["DQN"]
    steps, last, first, warmup = (old.value(key, defaults[key]) for key in _EPSILON)
    source = next(filter(old.is_given, _EPSILON), f"{_EXPLORES}final_epsilon")
    if old.is_given("exploration.epsilon"):
        pass  # the schedule of later releases
    elif old.value("training.noisy") is True and last == 0:
        old.derive("exploration.epsilon", 0.0, source, "as training.noisy explores")
    else:
        points = [[0, first], [steps, last]]
        if warmup:
            # What is no number is reported when the schedule is checked.
            numbers = all(isinstance(n, int | float) for n in (warmup, steps))
            points[1:] = [[warmup, first], [warmup + steps if numbers else steps, last]]
        old.derive("exploration.epsilon", points, source, "linear between points")
    for key in _EPSILON:
        old.take(key)


def _parameter_noise(old: RLlibSettings, kind: Node, name: str) -> None:
    """Convert noise in weights, and the epsilon-greedy exploration beside it."""
    if old.algorithm == "SAC":
        message = f"RLlib's SAC does not support it; rlrun's does, with exploration.type: {name}"
        old.refuse(kind, f"config.{_EXPLORES}type", message)
    beside = old.values.pop(f"{_EXPLORES}sub_exploration", None)
    given = None if beside is None else beside.value
    if beside is None or given is None:
        old.set("exploration.epsilon", 0.01, kind, DEFAULT)
    elif _is_greedy(beside.plain()):
        defaults = from_plain({"final_epsilon": 0.05, "epsilon_timesteps": 100_000}, kind.origin)
        for key, node in {**defaults.value, **given}.items():
            old.values[f"{_EXPLORES}{key}"] = node
        old.values.pop(f"{_EXPLORES}type")
        _epsilon(old)
    else:
        key = f"config.{_EXPLORES}sub_exploration"
        message = f"only EpsilonGreedy is translated, with {', '.join(_EPSILON_KEYS)}"
        old.refuse(beside, key, message)


def _is_greedy(value: Any) -> bool:
    is_mapping = isinstance(value, dict) and value.keys() <= {"type", *_EPSILON_KEYS}
    return is_mapping and value.get("type") == "EpsilonGreedy"


def _noise(old: RLlibSettings, kind: Node, name: str) -> None:
    """Convert noise that is added to actions: the schedule of its scale, and its units."""
    for key, default in tables()["noise_defaults"].items():
        old.values.setdefault(f"{_EXPLORES}{key}", from_plain(default, RLLIB_DEFAULT))
    first, last, steps, scale, sigma = (
        old.take(f"{_EXPLORES}{key}") for key in tables()["noise_defaults"]
    )
    old.set("exploration.scale", [[0, first], [steps, last]], kind, "initial_scale to final_scale")
    if name == "OrnsteinUhlenbeckNoise" and isinstance(scale, int | float):
        # RLlib multiplies by the whole range of an action, which is 2 in rlrun.
        sigma = 2 * scale * sigma if isinstance(sigma, int | float) else sigma
        old.set("exploration.sigma", sigma, kind, "2 ou_base_scale ou_sigma")


_NOISES = {
    "GaussianNoise": (_noise, 1000),
    "OrnsteinUhlenbeckNoise": (_noise, 1000),
    "ParameterNoise": (_parameter_noise, 10_000),
}
"""Type of exploration -> its rule, and RLlib's steps of random actions at the start."""


def _sac(old: RLlibSettings) -> None:
    frequency = "training.target_network_update_freq"
    if old.value(frequency) == 0:
        old.derive(frequency, 1, frequency, "after each update")
    if old.value("training.target_entropy") == "auto":
        old.take("training.target_entropy")
    critics, policy = "model.value_hidden", "model.hidden"
    if critics not in old.values and old.sources.get(policy, "").startswith("policy_model"):
        old.derive(
            critics, tables()["defaults"]["SAC"][policy], policy, "RLlib's default of the critics"
        )
    if old.value(critics) == old.value(policy):
        old.take(critics)


def _stochastic(old: RLlibSettings) -> None:
    """Remove `exploration_config` of algorithms that explore by their policy's distribution."""
    for name in [name for name in old.values if name.startswith(_EXPLORES)]:
        if name == f"{_EXPLORES}type" and old.value(name) != "StochasticSampling":
            message = f"{old.algorithm} explores by its policy's distribution"
            old.refuse(old.values.pop(name), f"config.{name}", message)
        else:
            old.drop(name, "the policy's distribution explores")


def _horizon(old: RLlibSettings) -> None:
    """Make horizons terminate, as RLlib's do without `soft_horizon` and `no_done_at_end`."""
    free = old.value("env_runners.soft_horizon") or old.value("env_runners.no_done_at_end")
    if old.value("env_runners.horizon") is None:
        if old.value("env_runners.soft_horizon") is False:
            old.take("env_runners.soft_horizon")
    elif not free:
        old.derive("env_runners.horizon_terminates", True, "env_runners.horizon", "as in RLlib")


def _device(old: RLlibSettings) -> None:
    if old.value("num_gpus") == 0:
        old.derive("learners.device", "cpu", "num_gpus")
        old.take("num_gpus")
    old.drop("num_gpus", "learners.device: auto takes a GPU if there is one")


def _activation(old: RLlibSettings) -> None:
    name = "model.activation"
    if old.value(name) == "swish":
        old.derive(name, "silu", name)
    elif name in old.values and old.value(name) is None:
        old.derive(name, "linear", name)


def _heads(old: RLlibSettings) -> None:
    """Require the activation that the hidden layers of heads have in rlrun."""
    is_dqn = old.algorithm == "DQN"
    hidden = "training.hiddens" if is_dqn else "model.head_hidden"
    needed = "relu" if is_dqn else old.value("model.activation")
    node, activation = old.values.get(_OF_HEADS), old.value(_OF_HEADS, "relu")
    old.take(_OF_HEADS)
    if old.value(hidden) and activation != needed:
        why = "layers of training.hiddens have relu" if is_dqn else "all hidden layers have one"
        default = "" if node else "; RLlib's default is 'relu'"
        message = f"only {needed!r} is translated: {why}{default}"
        old.refuse(node or old.values[hidden], f"config.{_OF_HEADS}", message)


_OF_HEADS = "model.head_fcnet_activation"


def _memory(old: RLlibSettings) -> None:
    if any(old.value(f"model.{name}") for name in MEMORY_SWITCHES):
        old.take("model.share_layers")


def _evaluation(old: RLlibSettings) -> None:
    interval = old.value("evaluation.interval")
    if interval == 0:
        old.derive("evaluation.interval", None, "evaluation.interval")
    unit = old.take("evaluation_duration_unit")
    if unit == "timesteps" and "evaluation.episodes" in old.values:
        old.derive("evaluation.env_steps", old.value("evaluation.episodes"), "evaluation.episodes")
        old.take("evaluation.episodes")
    inner = {name: old.values.pop(name) for name in list(old.values) if name.startswith(_IN_EVAL)}
    if inner:
        node = next(iter(inner.values()))
        settings = {name.removeprefix(_IN_EVAL): below for name, below in inner.items()}
        old.values["evaluation.env_runners"] = Node(settings, node.origin)
        old.sources["evaluation.env_runners"] = "evaluation_config"
    if interval and old.algorithm != "DQN" and "evaluation.explore" not in old.values:
        explores = "env_runners.explore"  # In RLlib evaluation uses the setting of training.
        source = explores if explores in old.values else DEFAULT
        old.derive("evaluation.explore", old.value(explores, True), source)


_IN_EVAL = "evaluation.env_runners."


def _conv(old: RLlibSettings) -> None:
    """Convert ``[channels, [height, width], stride]`` to ``[channels, kernel, stride]``."""
    layers = old.value("model.conv")
    if isinstance(layers, list):
        old.derive("model.conv", [_square(layer) for layer in layers], "model.conv")


def _square(layer: Any) -> Any:
    if isinstance(layer, list) and len(layer) == 3 and isinstance(layer[1], list):
        sizes = set(map(str, layer[1]))
        return [layer[0], layer[1][0], layer[2]] if len(sizes) == 1 else layer
    return layer


RULES: dict[str, Sequence[Rule]] = {
    "PG": (_rounds, _stochastic),
    "A2C": (_rounds, _sum_over_batch, _stochastic),
    "A3C": (_fragments, _sum_over_fragment, _stochastic),
    "PPO": (_rounds, _ppo_losses, _stochastic),
    "IMPALA": (_fragments, _sum_over_batch, _vtrace, _impala, _stochastic),
    "APPO": (_fragments, _vtrace, _appo, _stochastic),
    "DQN": (_sequences, _replay, _q_network, _exploration),
    "SAC": (_replay, _sac, _exploration),
}
"""Algorithm of rlrun -> its rules, in order."""

COMMON: Sequence[Rule] = (_horizon, _device, _heads, _activation, _memory, _evaluation, _conv)
"""Rules of all algorithms."""
