"""How a train batch is divided among env runners exactly. Must not know: algorithms, runners."""

from collections.abc import Iterator
from itertools import pairwise
from math import gcd

from rlrun.config.schema import EnvRunnersConfig


def fragment_lengths(
    train_batch_size: int, settings: EnvRunnersConfig, least_steps: int | None = None
) -> list[list[int]]:
    """Steps of each sub-environment, by round of sampling and runner; they add up exactly.

    Whole episodes take at most these rounds, if each fits a fragment. With "auto" the first runners
    take one step more if the batch does not divide evenly. `fragment_problems` must have found
    nothing.

    Args:
        least_steps: fewest env steps of a round with "auto", all runners together, which makes many
            short rounds, for learning between them; None makes one round.
    """
    runners, envs = max(settings.num_env_runners, 1), settings.num_envs_per_env_runner
    length = settings.rollout_fragment_length
    each = -(-(least_steps or train_batch_size) // (runners * envs)) if length == "auto" else length
    if settings.batch_mode == "complete_episodes":
        return [[each] * runners] * -(-train_batch_size // (each * envs * runners))
    if length != "auto":
        return [[each] * runners] * (train_batch_size // (each * envs * runners))
    per_env = train_batch_size // envs
    num_rounds = max(per_env // (runners * each), 1)
    ends = [per_env * i // num_rounds for i in range(num_rounds + 1)]
    rounds = [divmod(end - begin, runners) for begin, end in pairwise(ends)]
    return [[whole + (runner < rest) for runner in range(runners)] for whole, rest in rounds]


def stream_length(
    train_batch_size: int, settings: EnvRunnersConfig, most: int | None = None
) -> int:
    """The length of fragments, in steps of each sub-environment, that add up to a batch exactly.

    With "auto" a batch takes as many fragments as there are runners, or a few more where the batch
    does not divide evenly. `stream_problems` must have found nothing.

    Args:
        most: most steps of a fragment with "auto".
    """
    runners, envs = max(settings.num_env_runners, 1), settings.num_envs_per_env_runner
    if settings.rollout_fragment_length != "auto":
        return settings.rollout_fragment_length
    if settings.batch_mode == "complete_episodes":
        return -(-train_batch_size // (envs * runners))
    per_env = train_batch_size // envs
    longest = per_env // runners if most is None else min(per_env // runners, most)
    return next(t for t in range(longest, 0, -1) if per_env % t == 0)


def fragment_problems(
    train_batch_size: int, settings: EnvRunnersConfig
) -> Iterator[tuple[str, str]]:
    """Problems of a train batch size, as ``(key, message)`` with its arithmetic."""
    runners, envs = max(settings.num_env_runners, 1), settings.num_envs_per_env_runner
    length = settings.rollout_fragment_length
    if settings.batch_mode == "complete_episodes":
        return
    key = "training.train_batch_size"
    unit, least = _unit_and_least(settings)
    if length == "auto":
        arithmetic = f"{envs} environments step together"
    else:
        arithmetic = (
            f"one round of sampling brings rollout_fragment_length {length} x {envs} environments"
            f" x {runners} runner{'s' if runners > 1 else ''} = {unit} env steps"
        )
    if train_batch_size < least:
        if length == "auto":
            arithmetic = f"{runners} runners x {envs} environments = {least} env steps at least"
        way = _smaller_round(train_batch_size, settings)
        yield key, f"{train_batch_size} is too small: {arithmetic}; set it to {least} or more{way}"
    elif train_batch_size % unit:
        below = train_batch_size // unit * unit
        yield (
            key,
            f"{train_batch_size} cannot be met exactly: {arithmetic}, and {train_batch_size} / "
            f"{unit} = {train_batch_size / unit:g}; set it to {below} or {below + unit}",
        )


def _smaller_round(train_batch_size: int, settings: EnvRunnersConfig) -> str:
    """A setting of env runners that suits this train batch, as the end of a message; or ""."""
    envs, runners = settings.num_envs_per_env_runner, max(settings.num_env_runners, 1)
    ways: list[tuple[str, str | int]] = [("rollout_fragment_length", "auto")]
    for name, number in (("num_envs_per_env_runner", envs), ("num_env_runners", runners)):
        ways += [(name, gcd(number, train_batch_size)), (name, 1)]
    for name, value in ways:
        unit, least = _unit_and_least(settings.model_copy(update={name: value}))
        if train_batch_size >= least and not train_batch_size % unit:
            return f", or env_runners.{name} to {value}"
    return ""


def _unit_and_least(settings: EnvRunnersConfig) -> tuple[int, int]:
    """A train batch must be a multiple of the first number of env steps; a round has the second."""
    runners, envs = max(settings.num_env_runners, 1), settings.num_envs_per_env_runner
    length = settings.rollout_fragment_length
    whole = envs * runners if length == "auto" else length * envs * runners
    return (envs if length == "auto" else whole), whole


def stream_problems(train_batch_size: int, settings: EnvRunnersConfig) -> Iterator[tuple[str, str]]:
    """Like `fragment_problems`, for batches of single fragments instead of whole rounds."""
    if settings.rollout_fragment_length != "auto":
        settings = settings.model_copy(update={"num_env_runners": 1})
    yield from fragment_problems(train_batch_size, settings)
