"""Names of RLlib, Stable-Baselines3, CleanRL and Sample Factory, and what to use instead.

Owns: the advice for a key of another library, from retired.yaml, and for an attribute of RLlib's
classes. RLlib's names also translate its flat config dicts in the builder. The others only appear
in messages, since most of them count something else. Must not know: the schema; a test holds that
every new name exists in it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rlrun.config.registry import suggestion
from rlrun.config.yaml_tree import read_tables

Kind = Literal["successors", "no_effect", "rules", "other_libraries"]

_INTERNAL_PREFIXES = ("_enable_", "_disable_", "_fake_", "_tf_", "_use_")

STOP_KEYS: dict[str, str] = {
    "timesteps_total": "env_steps",
    "num_env_steps_sampled": "env_steps",
    "num_env_steps_sampled_lifetime": "env_steps",
    "episodes_total": "episodes",
    "time_total_s": "time_s",
    "agent_timesteps_total": "agent_steps",
    "num_agent_steps_sampled": "agent_steps",
    "num_env_steps_trained": "agent_steps_trained",
    "num_agent_steps_trained": "agent_steps_trained",
    "num_env_steps_trained_this_iter": "agent_steps_trained_this_iter",
    "num_env_steps_trained_throughput_per_sec": "agent_steps_trained_per_s",
    "num_env_steps_sampled_throughput_per_sec": "env_steps_per_s",
    **{
        f"{group}{sampled}episode_{old}": f"{group}episode_{old.replace('reward', 'return')}"
        for group in ("", "evaluation/")
        for sampled in ("", "sampler_results/", "env_runners/")
        for old in (
            *(f"{x}_{y}" for x in ("reward", "return") for y in ("mean", "min", "max")),
            "len_mean",
        )
        if sampled or "reward" in old
    },
    "rollout/ep_rew_mean": "episode_return_mean",
    "rollout/ep_len_mean": "episode_len_mean",
    "rollout/success_rate": "env_runners/success_rate",
    "eval/mean_reward": "evaluation/episode_return_mean",
    "eval/mean_ep_length": "evaluation/episode_len_mean",
    "eval/success_rate": "evaluation/success_rate",
    "time/total_timesteps": "env_steps",
}
"""Result keys of RLlib and Stable-Baselines3 -> rlrun's."""


CALLBACKS: dict[str, str] = {
    "on_trainer_init": "use on_algorithm_init",
    "on_workers_recreated": "use on_env_runners_recreated",
}
"""Method of RLlib's callbacks that is never called -> what to do instead."""

VALUES: dict[tuple[str, str], str] = {
    ("target_entropy", "auto"): "use null for RLlib's auto",
    ("activation", "swish"): "use silu, which is the same",
}
"""(key, value) of RLlib -> what to write for the value."""

OF_ALGORITHMS: Mapping[str, str] = {
    **dict.fromkeys(("workers", "local_worker"), "use env_runner_group"),
    "evaluation_workers": "use evaluator",
    "get_policy": "use acting_policy()",
    "compute_actions": "write acting_policy(num_envs=...).compute_actions(observations)",
}
"""Attribute of RLlib's algorithms -> what to use instead."""


def table(kind: Kind) -> Mapping[str, str]:
    """Retired name -> what to use instead, or why it is not needed."""
    return read_tables("retired.yaml")[kind]


def advice(name: str) -> str | None:
    """The message about a name of another library, or None for other names."""
    if name in table("successors"):
        return f"retired; use {table('successors')[name]}"
    if name in table("rules"):
        return f"retired; {table('rules')[name]}"
    if (reason := without_effect(name)) is not None:
        return f"retired; {reason}; remove this key"
    return table("other_libraries").get(name)


def without_effect(name: str) -> str | None:
    """Why a retired name is not needed, or None for other names."""
    internal = "it is internal to RLlib" if name.startswith(_INTERNAL_PREFIXES) else None
    return table("no_effect").get(name, internal)


def address_of(key: str, known: Mapping[str, Any]) -> str | None:
    """The address of a flat key of RLlib: its new name, or the only field of this name.

    Args:
        known: section -> its schema.
    """
    if (successor := table("successors").get(key)) is not None:
        section, _, field = successor.rpartition(".")
        return successor if field in known[section].model_fields else None
    owners = [name for name in known if name and key in known[name].model_fields]
    # `explore` alone is about sampling, as in RLlib.
    owners = [name for name in owners if name != "evaluation"] or owners
    return f"{owners[0]}.{key}" if len(owners) == 1 else None


class OldNames:
    """Base of classes that replace RLlib's; a missing attribute raises an error with advice.

    Attributes:
        old_names: old name -> advice for the error message.
    """

    old_names: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # so that type checkers still report missing attributes

        def __getattr__(self, name: str) -> Any:
            advice = type(self).old_names.get(name)
            if advice is None:
                own = [known for known in dir(type(self)) if not known.startswith("_")]
                hint = suggestion(name, own)
            else:
                hint = f": {advice}"
            raise AttributeError(f"{type(self).__name__} has no {name!r}{hint}")
