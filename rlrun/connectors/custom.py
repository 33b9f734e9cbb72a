"""Custom connectors: how they are made, and pipelines of custom and default connectors.

Owns `env_runners.env_to_module_connector` and `module_to_env_connector`, whose connectors run in
order before the default ones. Used only if there are custom connectors or the defaults are switched
off, so that other experiments do not pay for them. Must not know of environments, torch or Ray.

    B  slots    n  rows, of some slots
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from rlrun.config.problems import misfit, user_traceback
from rlrun.config.registry import import_object
from rlrun.connectors.connector import Connector, State
from rlrun.connectors.slot_history import SlotHistory, leaves
from rlrun.data.column_data import Array
from rlrun.data.nested import as_rows, row_form
from rlrun.policies.action_sampling import action_sampler

if TYPE_CHECKING:
    from rlrun.config.schema import UseSpec


class ConnectorError(Exception):
    """A connector of the user's own raised, or does not do what its spaces say.

    The message begins with the user's traceback, as text, and says last which connector it was.
    """

    exit_code = 1


@dataclass(frozen=True)
class ConnectedEnv:
    """What connectors may know about the environments, with gymnasium's names."""

    single_observation_space: gym.Space[Any]
    """Of one environment, before any connector."""
    single_action_space: gym.Space[Any]
    """Of one environment, after all connectors."""
    num_envs: int
    """B; 0 in the training process, whose copy only merges what was learned. With several agents a
    slot is one agent of one environment, of all agents that the policy may ever act for."""


@dataclass(frozen=True)
class NamedConnector:
    """A connector and its name in the experiment."""

    name: str
    connector: Connector

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Turn exceptions of the connector into ConnectorErrors with its name."""
        try:
            yield
        except ConnectorError:
            raise
        except Exception as error:
            raise ConnectorError(f"{user_traceback(error)}connector {self.name} failed") from None

    def run(self, rows: Any, history: SlotHistory, space: gym.Space[Any] | None) -> Any:
        """Call the connector; returns its rows, one for each slot, in ``space`` if that is given.

        Raises:
            ConnectorError: it raised, or its rows are not like that.
        """
        with self.named_in_errors():
            rows = self.connector(rows, history)
        if isinstance(rows, dict | tuple):
            return rows
        shape, n = np.shape(rows), len(history.slots)
        if shape[:1] != (n,):
            raise ConnectorError(
                f"connector {self.name}: expected {n} rows, one for each slot, got shape {shape}"
            )
        if space is not None and space.shape not in (None, shape[1:]):
            raise ConnectorError(
                f"connector {self.name}: its rows have shape {shape[1:]}, but its connect() "
                f"announced {space}"
            )
        return rows


def make_connectors(
    setting: str, specs: Sequence[UseSpec], offered: Mapping[str, Callable[[], Any]]
) -> list[NamedConnector]:
    """The connectors that a setting names, in their order.

    Args:
        setting: key in `env_runners`, for messages.
        offered: arguments for classes and functions that have parameters of these names.

    Raises:
        ConnectorError: one raised, or made something other than connectors.
    """
    connectors: list[NamedConnector] = []
    for spec in specs:
        make = import_object(spec.use)
        parameters = signature(make).parameters
        given = {name: offer() for name, offer in offered.items() if name in parameters}
        try:
            made = make(**{**given, **spec.arguments()})
        except Exception as error:
            raise ConnectorError(
                f"{user_traceback(error)}connector {spec.use} cannot be made"
            ) from None
        for connector in made if isinstance(made, list | tuple) else [made]:
            if not isinstance(connector, Connector):
                raise ConnectorError(
                    f"env_runners.{setting}: {spec.use} must make an rlrun.Connector or a list of "
                    f"them, but made {connector!r}"
                )
            connectors.append(NamedConnector(spec.use, connector))
    return connectors


class CustomPipeline(Connector):
    """Several connectors; their states and deltas are kept by their position.

    Args:
        connectors: in order.
        env: the environments of the slots.
        history: passed to each connector.
    """

    def __init__(
        self, connectors: Sequence[NamedConnector], env: ConnectedEnv, history: SlotHistory
    ) -> None:
        self._connectors, self._history = connectors, history
        self._all = np.arange(env.num_envs)
        # The training process, without slots, knows a connector's state only once it has learned.
        self._known = {str(i) for i in range(len(connectors))} if env.num_envs else set()

    def get_state(self) -> State:
        return self._of_each(lambda connector: connector.get_state(), self._known)

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._known |= state.keys()
        self._of_each(lambda connector, part: connector.set_state(part), state)

    def flush_deltas(self) -> State:
        positions = map(str, range(len(self._connectors)))
        deltas = self._of_each(lambda connector: connector.flush_deltas(), positions)
        return {position: delta for position, delta in deltas.items() if delta}

    def apply_deltas(self, deltas: Iterable[Mapping[str, Any]]) -> None:
        by_position: dict[str, list[Any]] = {}
        for delta in deltas:
            for position, part in delta.items():
                by_position.setdefault(position, []).append(part)
        self._known |= by_position.keys()
        self._of_each(lambda connector, parts: connector.apply_deltas(parts), by_position)

    def _of_each(self, ask: Callable[..., Any], which: Iterable[str] | Mapping[str, Any]) -> State:
        answers = {}
        for position in sorted(which, key=int):
            named = self._connectors[int(position)]
            arguments = (which[position],) if isinstance(which, Mapping) else ()
            with named.named_in_errors():
                answers[position] = ask(named.connector, *arguments)
        return answers


class EnvToModule(CustomPipeline):
    """Custom connectors of observations, then the default pipeline.

    Args:
        connectors, env, history: see `CustomPipeline`; the history records raw observations.
        make_default: makes the default pipeline, given the connectors' output space; None if there
            is none.

    Attributes:
        output_space: of one row of the result.
    """

    def __init__(
        self,
        connectors: Sequence[NamedConnector],
        env: ConnectedEnv,
        history: SlotHistory,
        make_default: Callable[[gym.Space[Any]], Any] | None,
    ) -> None:
        super().__init__(connectors, env, history)
        self._raw_space = space = env.single_observation_space
        self._spaces = []
        for named in connectors:
            with named.named_in_errors():
                space = named.connector.connect(space)
            self._spaces.append(space)
        self._default = None if make_default is None else make_default(space)
        self.output_space = space if self._default is None else self._default.output_space
        self._nested = self._default is None and self.output_space.shape is None
        if self._nested:
            row_form(self.output_space)

    def __call__(
        self, observations: Any, *, update: bool | Array = True, slots: Array | None = None
    ) -> Any:
        """Raw observations of these slots, or of all -> one row of ``output_space`` each."""
        return self._run(observations, self._all if slots is None else slots, update)

    def first(self, observations: Any, slots: Array, *, update: bool = True) -> Any:
        """The same for the first observations of episodes that begin in ``slots``."""
        self._history.begin(slots)
        return self._run(observations, slots, update)

    def _run(self, observations: Any, slots: Array, update: bool | Array) -> Any:
        self._history.see(observations, slots, update=bool(np.any(update)))
        for named, space in zip(self._connectors, self._spaces, strict=True):
            observations = named.run(observations, self._history, space)
        if self._default is not None:
            observations = self._default(observations, update=update)
        return as_rows(self.output_space, observations) if self._nested else observations

    def preprocess(self, observations: Any) -> Array:
        """The bytes of raw observations, uint8 [n, bytes], which depend on nothing else."""
        parts = [np.ascontiguousarray(leaf) for leaf in leaves(self._raw_space, observations)]
        rows = len(parts[0])
        return np.concatenate([part.reshape(rows, -1).view(np.uint8) for part in parts], axis=1)

    def get_state(self) -> State:
        """The states of the connectors, the default pipeline and the history."""
        state = {"connectors": super().get_state()}
        if self._default is not None:
            state["default"] = self._default.get_state()
        if len(self._all):
            state["history"] = self._history.get_state()
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.set_connectors(state["connectors"])
        if self._default is not None:
            self._default.set_state(state["default"])
        if "history" in state:
            self._history.set_state(state["history"])

    def set_connectors(self, state: Mapping[str, Any]) -> None:
        """Restore only the connectors' part of a state."""
        super().set_state(state)

    def flush_deltas(self) -> State:
        default = {} if self._default is None else self._default.flush_deltas()
        return {"connectors": super().flush_deltas(), "default": default}

    def apply_deltas(self, deltas: Iterable[Mapping[str, Any]]) -> None:
        deltas = list(deltas)
        super().apply_deltas([delta["connectors"] for delta in deltas])
        if self._default is not None:
            self._default.apply_deltas([delta["default"] for delta in deltas])


class ModuleToEnv(CustomPipeline):
    """Custom connectors of actions, then the default pipeline.

    Args:
        connectors, env, history: see `CustomPipeline`; the history's `no_action` is set here.
        default: the default pipeline; None if there is none.

    Attributes:
        input_space: of the policy's actions.
        sent: the latest output [B, ...] of the connectors, from which episodes are replayed without
            calling the connectors again.
    """

    def __init__(
        self,
        connectors: Sequence[NamedConnector],
        env: ConnectedEnv,
        history: SlotHistory,
        default: Connector | None,
    ) -> None:
        space = env.single_action_space
        if default is None and isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
            message = f"actions of {space} are arrays until the default connectors nest them"
            key = "env_runners.add_default_connectors_to_module_to_env_pipeline"
            raise misfit(key, f"{message}; remove this key")
        for named in reversed(connectors):
            with named.named_in_errors():
                space = named.connector.connect(space)
        super().__init__(connectors, env, history)
        self._default, self.input_space = default, space
        sampler = action_sampler(space)
        history.no_action = np.zeros(sampler.shape, sampler.dtype)
        self.sent: Array = np.empty(0)

    def __call__(self, actions: Array) -> Any:
        """Actions of the policy [B, ...] -> actions of the environments."""
        self.sent = self.customised(actions, self._all)
        return self.send(self.sent)

    def customised(self, actions: Array, slots: Array) -> Array:
        """The connectors' output [n, ...] for actions of these slots; read-only."""
        self._history.slots = slots
        for named in self._connectors:
            actions = named.run(actions, self._history, None)
        sent = np.array(actions)
        sent.flags.writeable = False
        return sent

    def send(self, actions: Array) -> Any:
        """The default pipeline's output for the connectors' output."""
        return actions if self._default is None else self._default(actions)
