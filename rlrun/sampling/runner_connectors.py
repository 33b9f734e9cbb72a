"""RunnerConnectors: all connectors between the environments and one policy.

Owns which connectors there are, the default ones and the user's own, and their common state. Each
env runner has such an object for each policy, and so has the training process: its own has no
slots and sees no data, but merges what the runners' objects have learned.

    B  slots, 0 in the training process
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from rlrun.connectors.actions import ActionPipeline
from rlrun.connectors.observations import ObservationPipeline
from rlrun.connectors.rewards import RewardPipeline
from rlrun.data.seeding import (
    GENERATORS_LOCK,
    Role,
    connector_seed,
    generators_seed,
    seeded_generators,
)
from rlrun.envs.atari import is_atari_id
from rlrun.policies.privileged import PolicyInput
from rlrun.sampling.runner_messages import RunnerSpec, custom_policy

if TYPE_CHECKING:
    from rlrun.config.policies import PolicySettings
    from rlrun.config.schema import ModelConfig
    from rlrun.connectors.custom import EnvToModule, NamedConnector
    from rlrun.connectors.slot_history import SlotHistory
    from rlrun.policies.policy import Policy

State = dict[str, Any]


class RunnerConnectors:
    """The connectors of one policy, in an env runner or in the training process.

    Args:
        observation_space, action_space: of one environment.
        num_slots: B.
        key: seeds connectors that draw random numbers, and the making of the policy: the runner's
            role and index, and with several agents a number of the policy's.
        policy: what one of several policies is made from.

    Attributes:
        env_spaces: observation and action space of one environment.
        observations, actions, rewards: the pipelines.
        history: what custom connectors see of the steps before; None without them.
        stateful: False where nothing here has a state or learns: it need not be asked for any.

    Raises:
        ConnectorError: a custom connector failed.
    """

    def __init__(
        self,
        spec: RunnerSpec,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        num_slots: int = 0,
        key: tuple[int, ...] = (Role.TRAIN, 0),
        policy: PolicySettings | None = None,
    ) -> None:
        self._spec, self._settings = spec, policy
        self._generators_seed = generators_seed(spec.seed, *key)
        self.env_spaces = observation_space, action_space
        self.rewards = reward_pipeline(spec)
        self.observations: ObservationPipeline | EnvToModule
        self.actions: Any  # an ActionPipeline, or a ModuleToEnv
        self.history: SlotHistory | None = None
        settings = spec.settings
        if (
            settings.env_to_module_connector
            or settings.module_to_env_connector
            or not settings.add_default_connectors_to_env_to_module_pipeline
            or not settings.add_default_connectors_to_module_to_env_pipeline
        ):
            self._build_custom(num_slots, connector_seed(spec.seed, *key))
        else:
            self.observations = self._default_observations(observation_space)
            self.actions = self._default_actions()
        self.stateful = not (self.observations.identity and self.rewards.identity)
        # Those with a state, by their names in states and deltas.
        self._pipelines: dict[str, Any] = {
            "observations": self.observations,
            "rewards": self.rewards,
            **({} if self.history is None else {"actions": self.actions}),
        }

    @property
    def action_space(self) -> gym.Space[Any]:
        """What the policy acts in."""
        return self.env_spaces[1] if self.history is None else self.actions.input_space

    @cached_property
    def policy(self) -> Policy:
        """The policy between these connectors."""
        # One more policy must not change what the process draws next, such as dropout masks.
        with GENERATORS_LOCK, seeded_generators(self._generators_seed):
            return self._make_policy(self.action_space)

    @property
    def _model(self) -> ModelConfig:
        return self._spec.model if self._settings is None else self._settings.model

    @property
    def needed_space(self) -> gym.Space[Any]:
        """What the policy needs of an environment's observations: all that is not privileged."""
        space, privileged = self.env_spaces[0], self._model.privileged
        is_custom = self.history is not None or (self._settings is not None and self._settings.use)
        named = isinstance(space, gym.spaces.Dict) and set(privileged) <= space.keys()
        if is_custom or not privileged or not named:
            return space
        return PolicyInput(space, privileged).space

    def _make_policy(self, action_space: gym.Space[Any]) -> Policy:
        spec, settings = self._spec, self._settings
        spaces = self.observations.output_space, action_space
        if settings is not None and settings.use is not None:
            policy = custom_policy(settings, *spaces)
        else:
            place = {} if spec.device is None else {"device": spec.device}
            policy = spec.policy_factory(*spaces, self._model, **place)
        policy.explores = spec.settings.explore
        return policy

    def _default_observations(self, space: gym.Space[Any]) -> ObservationPipeline:
        return ObservationPipeline(space, self._spec.settings, self._model.privileged)

    def _default_actions(self) -> ActionPipeline:
        own, space = self._spec.connectors, self.env_spaces[1]
        return ActionPipeline(space, normalize=own.normalize_actions, clip=own.clip_actions)

    def _build_custom(self, num_slots: int, seed: int) -> None:
        from rlrun.connectors.custom import ConnectedEnv, EnvToModule, ModuleToEnv, make_connectors
        from rlrun.connectors.slot_history import SlotHistory

        settings = self._spec.settings
        env = ConnectedEnv(*self.env_spaces, num_slots)
        lookback = settings.episode_lookback_horizon
        history = SlotHistory(num_slots, lookback, env.single_observation_space)
        with_observations = settings.add_default_connectors_to_env_to_module_pipeline
        with_actions = settings.add_default_connectors_to_module_to_env_pipeline
        offered: dict[str, Callable[[], Any]] = {"env": lambda: env, "seed": lambda: seed}
        self.observations = EnvToModule(
            make_connectors("env_to_module_connector", settings.env_to_module_connector, offered),
            env,
            history,
            self._default_observations if with_observations else None,
        )
        policies: list[Policy] = []

        def offer_policy() -> Policy:
            if not policies:
                policies.append(self._make_policy(env.single_action_space))
            return policies[0]

        offered["module"] = offer_policy
        connectors = make_connectors(
            "module_to_env_connector", settings.module_to_env_connector, offered
        )
        default = self._default_actions() if with_actions else None
        self.actions, self.history = ModuleToEnv(connectors, env, history, default), history
        at_first = self.observations.get_state()["connectors"], self.actions.get_state()
        self._at_first = deepcopy(at_first)
        if policies:
            self._keep_policy(policies[0], connectors)

    def _keep_policy(self, policy: Policy, connectors: Sequence[NamedConnector]) -> None:
        """The policy that a connector was given must be the one that acts."""
        if self.action_space != self.env_spaces[1]:
            from rlrun.connectors.custom import ConnectorError

            names = ", ".join(named.name for named in connectors)
            raise ConnectorError(
                f"env_runners.module_to_env_connector: {names} change the action space to "
                f"{self.action_space}, so there is no module yet that one of them could be given"
            )
        self.policy = policy

    def get_state(self) -> State:
        """The state of all pipelines."""
        return {name: pipeline.get_state() for name, pipeline in self._pipelines.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`, of this object or the training process's."""
        for name, pipeline in self._pipelines.items():
            pipeline.set_state(state.get(name, {}))

    def flush_deltas(self) -> State:
        """What was learned since the last flush."""
        return {name: pipeline.flush_deltas() for name, pipeline in self._pipelines.items()}

    def apply_deltas(self, deltas: Sequence[Mapping[str, Any]]) -> None:
        """Merge what runners have learned."""
        for name, pipeline in self._pipelines.items():
            pipeline.apply_deltas([delta[name] for delta in deltas])

    def forget_custom(self) -> None:
        """Have custom connectors as they were made, so that no evaluation depends on another."""
        if self.history is not None:
            observations, actions = deepcopy(self._at_first)
            self._pipelines["observations"].set_connectors(observations)
            self.actions.set_state(actions)


def reward_pipeline(spec: RunnerSpec) -> RewardPipeline:
    """From rewards to what learning sees; null clips on Atari with deepmind preprocessing."""
    clip = spec.connectors.clip_rewards
    if clip is None:
        clip = spec.settings.preprocessor_pref == "deepmind" and _is_atari(spec)
    return RewardPipeline(clip=clip, normalize=spec.connectors.normalize_rewards, gamma=spec.gamma)


def _is_atari(spec: RunnerSpec) -> bool:
    if spec.settings.gym_env_vectorize_mode != "envpool":
        return is_atari_id(spec.env.use)
    from rlrun.envs import envpool_env

    return envpool_env.is_atari(spec.env.use)
