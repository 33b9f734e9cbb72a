"""Messages between an algorithm and its env runners: specification, request and reply.

All are cheap to pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from rlrun.config.policies import PolicySettings
from rlrun.config.registry import ENVS, GIVEN, code_name, import_object
from rlrun.config.schema import ConnectorsConfig, EnvRunnersConfig, EnvSpec, ModelConfig, UseSpec
from rlrun.data.sample_batch import MultiAgentBatch, SampleBatch
from rlrun.policies.numpy_policy import build_policy
from rlrun.policies.policy import Policy
from rlrun.policies.policy_mapping import AgentMapping
from rlrun.sampling.episodes import EpisodeRecord

if TYPE_CHECKING:
    import gymnasium as gym


Exploration = dict[str, float] | tuple[dict[str, float], ...]
"""Arguments of `Policy.set_exploration`; one for each runner if they differ."""

PolicyFactory = Callable[..., Policy]
"""Called with observation space, action space and the `model` section, and with ``device=`` if the
runner has one."""


@dataclass(frozen=True)
class MultiAgentSpec:
    """Policies and agents of an environment with several agents."""

    policies: Mapping[str, PolicySettings]
    agents: Mapping[str, Any] | str | None = None
    """See `AgentMapping`."""
    count_agent_steps: bool = False
    """Whether `SampleRequest.length` counts agent steps rather than env steps."""
    factories: Mapping[str, PolicyFactory] = field(default_factory=dict)
    """Factories by policy id; `RunnerSpec.policy_factory` makes the other policies."""
    in_training: MultiAgentSpec | None = None
    """In evaluation with other `agents`: the spec of training, where policies have agents too."""

    def mapping(self) -> AgentMapping:
        """Which policies agents have."""
        in_training = None if self.in_training is None else self.in_training.mapping()
        # Policies that are added during a run leave agents with the only one that was named.
        named = [policy_id for policy_id, own in self.policies.items() if own.like is None]
        return AgentMapping(self.agents, named, in_training)


@dataclass(frozen=True)
class RunnerCallbacks:
    """Callbacks with methods that run in env runners."""

    spec: UseSpec
    methods: frozenset[str]
    """Names of the methods that their class defines."""


@dataclass(frozen=True)
class RunnerSpec:
    """Everything that a runner needs to know, without the algorithm's settings."""

    env: EnvSpec
    """May be given as a name, or as a class or function that makes the environment."""
    settings: EnvRunnersConfig = field(default_factory=EnvRunnersConfig)
    connectors: ConnectorsConfig = field(default_factory=ConnectorsConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    seed: int = 0
    restart_failed_sub_environments: bool | Literal["auto"] = False
    max_sub_environment_failures_per_1000_steps: float = 50.0
    env_timeout_s: float | None = None
    max_replayed_env_steps: int = 100_000
    gamma: float = 0.99
    """Discount of the return whose standard deviation `normalize_rewards` divides by."""
    callbacks: tuple[RunnerCallbacks, ...] = ()
    """Callbacks of which the runner makes its own instances."""
    info_keys: tuple[str, ...] = ()
    """Numbers of an episode's last info that its record gets."""
    policy_factory: PolicyFactory = build_policy
    """Called with the preprocessed observation space, the action space and the model settings."""
    multi_agent: MultiAgentSpec | None = None
    """The policies of an environment with several agents."""
    device: str | None = None
    """Torch device of policies, MLPs included: "cuda"; None is the CPU, where MLPs act in numpy.
    Custom policies choose for themselves."""

    def of_actors(self) -> RunnerSpec:
        """The spec of runners that are Ray actors; with GPUs, policies act on the first one."""
        return replace(self, device="cuda") if self.settings.num_gpus_per_env_runner else self

    def __post_init__(self) -> None:
        env: Any = self.env
        if not isinstance(env, EnvSpec):
            use = code_name(env) if callable(env) else env
            object.__setattr__(self, "env", EnvSpec(use=use))

    @property
    def code(self) -> dict[str, Any]:
        """Code named in the spec that has no import path and so is sent along, by name."""
        text = repr(vars(self))
        return {name: code for name, code in {**ENVS, **GIVEN}.items() if f"'{name}'" in text}

    def __getstate__(self) -> dict[str, Any]:
        given = {name: code for name, code in self.code.items() if name in GIVEN}
        return {**vars(self), "given": given}

    def __setstate__(self, state: dict[str, Any]) -> None:
        GIVEN.update(state.pop("given"))
        vars(self).update(state)


@dataclass(frozen=True)
class SampleRequest:
    """A request for one fragment. Weights are sent separately, once for all runners."""

    fragment: int
    """Number of the request in the run; it seeds the action noise."""
    length: int
    """Steps of each sub-environment."""
    weights_version: int = 0
    connector_state: dict[str, Any] | None = None
    """Merged connector statistics to set first; None keeps the runner's own."""
    exploration: Mapping[str, Exploration] = field(default_factory=dict)
    """Arguments of `Policy.set_exploration`, by policy id."""
    leave_out: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Columns to leave out of batches, by policy id."""
    policies: Mapping[str, PolicySettings] | None = None
    """All present policies, if there are several; they may come and go."""

    def get_state(self) -> dict[str, Any]:
        """The parts that checkpoints need; the rest is in the run's settings."""
        return {
            "fragment": self.fragment,
            "weights_version": self.weights_version,
            "connector_state": self.connector_state,
            "exploration": dict(self.exploration),
            "policies": None if self.policies is None else policy_numbers(self.policies),
        }


def lone_request(settings: EnvRunnersConfig, fragment: int, weights_version: int) -> SampleRequest:
    """The request of a standalone runner: a fragment with the present weights."""
    length = settings.rollout_fragment_length
    return SampleRequest(fragment, 200 if length == "auto" else length, weights_version)


@dataclass(frozen=True)
class SampleReply:
    """One fragment, with counts and statistics."""

    runner_index: int
    weights_version: int
    policy_numbers: dict[str, int]
    """See `policy_numbers`."""
    batches: MultiAgentBatch
    """The rows, by policy."""
    env_steps: int
    agent_steps: int
    """Transitions of all agents; with one agent the env steps."""
    vector_steps: int
    """Number of steps of all sub-environments together."""
    episodes: list[EpisodeRecord]
    connector_deltas: dict[str, Any]
    """Statistics gathered since the last reply, for the central connectors to merge."""
    timings_s: dict[str, float]
    """Seconds of this fragment by part: `policy`, `env`, `other`."""
    longest_running_episode: int
    """Env steps of the longest episode that has not ended."""
    faulty_episodes: int
    """Episodes dropped so far because their environment raised; includes replaced runners'."""

    @property
    def batch(self) -> SampleBatch | MultiAgentBatch:
        """The rows; a SampleBatch if the default policy is the only one."""
        return self.batches.unwrapped()


def policy_numbers(policies: Mapping[str, PolicySettings | None]) -> dict[str, int]:
    """Policy id -> what tells the policy from earlier ones of its id; 0 without settings."""
    return {policy_id: 0 if own is None else own.number for policy_id, own in policies.items()}


def tell_exploration(
    policies: Mapping[str, Policy],
    exploration: Mapping[str, Exploration],
    runner_index: int | None = None,
) -> None:
    """Set the exploration of a runner's policies; runner 0, the local one, counts as the first.

    Without a runner the policies explore as the last one's, the least where runners differ.
    """
    for policy_id, settings in exploration.items():
        if policy_id in policies:
            runners = settings if isinstance(settings, tuple) else (settings,)
            last = len(runners)
            number = last if runner_index is None else min(max(runner_index, 1), last)
            policies[policy_id].set_exploration(runners[number - 1])


def for_policy(spec: RunnerSpec, policy_id: str, settings: PolicySettings) -> RunnerSpec:
    """The spec for one of several policies, with its own factory and discount."""
    assert spec.multi_agent is not None
    made_from = settings.like or policy_id
    factory = spec.multi_agent.factories.get(made_from, spec.policy_factory)
    return replace(spec, gamma=settings.training.gamma, policy_factory=factory)


def custom_policy(
    settings: PolicySettings,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    model: ModelConfig | None = None,
    **_: Any,
) -> Policy:
    """A custom policy, made of its settings; with these bound, a `PolicyFactory`."""
    kind: type[Policy] = import_object(settings.use or "")
    return kind(observation_space, action_space, deepcopy(dict(settings.kwargs)))
