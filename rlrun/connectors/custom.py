"""Connectors of the user's own: how they are made, and the pipelines that they stand first in.

Owns `env_runners.env_to_module_connector` and `module_to_env_connector`: pieces, in their order,
before what rlrun does by default. Used only where there are such pieces or the defaults are
switched off, so that nobody else pays for them. Must not know of environments, torch or Ray.

    B  lanes    n  rows, of some lanes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlrun.config.problems import user_traceback
from rlrun.config.registry import import_object
from rlrun.connectors.connector import Connector, State
from rlrun.connectors.errors import ConnectorError
from rlrun.connectors.lane_history import LaneHistory, leaves

if TYPE_CHECKING:
    from rlrun.config.schema import UseSpec

Array = NDArray[Any]


@dataclass(frozen=True)
class ConnectedEnv:
    """What a connector is told of the environments; the names are gymnasium's."""

    single_observation_space: gym.Space[Any]
    """Of one environment, before any connector."""
    single_action_space: gym.Space[Any]
    """Of one environment, behind all connectors."""
    num_envs: int
    """B; 0 for the centre's copy, which only merges what was learned. With several agents all who
    may ever play the policy count, in each environment: a lane is one of them."""


@dataclass(frozen=True)
class Piece:
    """One connector and what the experiment calls it."""

    name: str
    connector: Connector

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Turn what the connector raises into a ConnectorError with its name."""
        try:
            yield
        except ConnectorError:
            raise
        except Exception as error:
            raise ConnectorError(f"{user_traceback(error)}connector {self.name} failed") from None

    def run(self, rows: Any, history: LaneHistory, space: gym.Space[Any] | None) -> Any:
        """What the connector makes of rows; one for each lane, and in ``space`` if that is given.

        Raises:
            ConnectorError: it raised, or did not do that.
        """
        with self.blamed():
            rows = self.connector(rows, history)
        if isinstance(rows, dict | tuple):
            return rows
        shape, n = np.shape(rows), len(history.lanes)
        if shape[:1] != (n,):
            raise ConnectorError(
                f"connector {self.name}: expected {n} rows, one for each lane, got shape {shape}"
            )
        if space is not None and space.shape not in (None, shape[1:]):
            raise ConnectorError(
                f"connector {self.name}: its rows have shape {shape[1:]}, but its connect() "
                f"announced {space}"
            )
        return rows


def make_pieces(
    setting: str, specs: Sequence[UseSpec], offered: Mapping[str, Callable[[], Any]]
) -> list[Piece]:
    """The connectors that a setting names, in their order.

    Args:
        setting: key in `env_runners`, for messages.
        offered: by name, arguments that classes and functions get if they have such a parameter.

    Raises:
        ConnectorError: one raised, or made something else than connectors.
    """
    pieces: list[Piece] = []
    for spec in specs:
        make = import_object(spec.use)
        parameters = signature(make).parameters
        given = {name: offer() for name, offer in offered.items() if name in parameters}
        try:
            made = make(**{**given, **spec.kwargs})
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
            pieces.append(Piece(spec.use, connector))
    return pieces


class _Pieces:
    """State of several pieces, by their position."""

    def __init__(self, pieces: Sequence[Piece], *, has_lanes: bool) -> None:
        self._pieces = pieces
        # The centre knows a piece's state only if it learns: what it holds else is of no lane.
        self._known = {str(i) for i in range(len(pieces))} if has_lanes else set()

    def get_state(self) -> State:
        return self._of_each(lambda connector: connector.get_state(), self._known)

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._known |= state.keys()
        self._of_each(lambda connector, part: connector.set_state(part), state)

    def flush_deltas(self) -> State:
        positions = map(str, range(len(self._pieces)))
        deltas = self._of_each(lambda connector: connector.flush_deltas(), positions)
        return {position: delta for position, delta in deltas.items() if delta}

    def apply_deltas(self, deltas: Iterable[Mapping[str, Any]]) -> None:
        by_piece: dict[str, list[Any]] = {}
        for delta in deltas:
            for position, part in delta.items():
                by_piece.setdefault(position, []).append(part)
        self._known |= by_piece.keys()
        self._of_each(lambda connector, parts: connector.apply_deltas(parts), by_piece)

    def _of_each(self, ask: Callable[..., Any], which: Iterable[str] | Mapping[str, Any]) -> State:
        answers = {}
        for position in sorted(which, key=int):
            piece = self._pieces[int(position)]
            arguments = (which[position],) if isinstance(which, Mapping) else ()
            with piece.blamed():
                answers[position] = ask(piece.connector, *arguments)
        return answers


class EnvToModule(Connector):
    """Pieces of the user's own, then what happens to observations by default.

    Args:
        pieces: in their order.
        env: what comes in.
        history: told what comes in, and handed to each piece.
        make_default: from the space that leaves the pieces to the default pipeline; None: nothing
            comes after them.

    Attributes:
        output_space: of one row of the result.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        env: ConnectedEnv,
        history: LaneHistory,
        make_default: Callable[[gym.Space[Any]], Any] | None,
    ) -> None:
        self._pieces, self._history = pieces, history
        self._raw_space = space = env.single_observation_space
        self._all = np.arange(env.num_envs)
        self._spaces = []
        for piece in pieces:
            with piece.blamed():
                space = piece.connector.connect(space)
            self._spaces.append(space)
        self._default = None if make_default is None else make_default(space)
        self.output_space = space if self._default is None else self._default.output_space
        if self.output_space.shape is None:
            raise ConnectorError(
                f"observations reach the policy as {self.output_space}, but it takes one array a "
                "row; env_runners.add_default_connectors_to_env_to_module_pipeline: true makes one"
            )
        self._states = _Pieces(pieces, has_lanes=env.num_envs > 0)

    def __call__(
        self, observations: Any, *, update: bool = True, lanes: Array | None = None
    ) -> Any:
        """Raw observations of these lanes, or of all -> one row of ``output_space`` each."""
        return self._run(observations, self._all if lanes is None else lanes, update)

    def first(self, observations: Any, lanes: Array, *, update: bool = True) -> Any:
        """The same for the first observations of episodes that begin in ``lanes``."""
        self._history.begin(lanes)
        return self._run(observations, lanes, update)

    def _run(self, observations: Any, lanes: Array, update: bool) -> Any:
        self._history.see(observations, lanes, update=update)
        for piece, space in zip(self._pieces, self._spaces, strict=True):
            observations = piece.run(observations, self._history, space)
        if self._default is not None:
            observations = self._default(observations, update=update)
        return observations

    def preprocess(self, observations: Any) -> Array:
        """The bytes of raw observations, uint8 [n, bytes]: a function of them alone."""
        parts = [np.ascontiguousarray(leaf) for leaf in leaves(self._raw_space, observations)]
        rows = len(parts[0])
        return np.concatenate([part.reshape(rows, -1).view(np.uint8) for part in parts], axis=1)

    def get_state(self) -> State:
        """What the pieces and the default pipeline keep, and the history."""
        state = {"pieces": self._states.get_state()}
        if self._default is not None:
            state["default"] = self._default.get_state()
        if len(self._all):
            state["history"] = self._history.get_state()
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned, here or in the centre."""
        self.set_pieces(state["pieces"])
        if self._default is not None:
            self._default.set_state(state["default"])
        if "history" in state:
            self._history.set_state(state["history"])

    def set_pieces(self, state: Mapping[str, Any]) -> None:
        """Take over the pieces' part of a state alone."""
        self._states.set_state(state)

    def flush_deltas(self) -> State:
        """What the pieces and the filter learned since the last flush."""
        default = {} if self._default is None else self._default.flush_deltas()
        return {"pieces": self._states.flush_deltas(), "default": default}

    def apply_deltas(self, deltas: Iterable[Mapping[str, Any]]) -> None:
        """Merge the flushed deltas of other pipelines."""
        deltas = list(deltas)
        self._states.apply_deltas([delta["pieces"] for delta in deltas])
        if self._default is not None:
            self._default.apply_deltas([delta["default"] for delta in deltas])


class ModuleToEnv(Connector):
    """Pieces of the user's own, then what happens to actions by default.

    Args:
        pieces: in their order.
        env: where the actions go.
        history: handed to each piece.
        default: from the arrays that leave the pieces to the environments; None: they are it.

    Attributes:
        input_space: of the policy's actions.
        sent: the arrays [B, ...] that left the pieces last; a running episode is replayed from
            these, without asking the pieces again.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        env: ConnectedEnv,
        history: LaneHistory,
        default: Connector | None,
    ) -> None:
        space = env.single_action_space
        if default is None and isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
            raise ConnectorError(
                f"actions of {space} are arrays until the default connectors nest them; leave out "
                "env_runners.add_default_connectors_to_module_to_env_pipeline"
            )
        for piece in reversed(pieces):
            with piece.blamed():
                space = piece.connector.connect(space)
        self._pieces, self._history, self._default = pieces, history, default
        self._all = np.arange(env.num_envs)
        self.input_space = space
        self.sent: Array = np.empty(0)
        self._states = _Pieces(pieces, has_lanes=env.num_envs > 0)

    def __call__(self, actions: Array) -> Any:
        """Actions of the policy [B, ...] -> what the environments take."""
        self.sent = self.behind_pieces(actions, self._all)
        return self.send(self.sent)

    def behind_pieces(self, actions: Array, lanes: Array) -> Array:
        """What the pieces make of actions of these lanes [n, ...]; read-only."""
        self._history.lanes = lanes
        for piece in self._pieces:
            actions = piece.run(actions, self._history, None)
        sent = np.array(actions)
        sent.flags.writeable = False
        return sent

    def send(self, actions: Array) -> Any:
        """What is done to actions behind the pieces."""
        return actions if self._default is None else self._default(actions)

    def get_state(self) -> State:
        """What the pieces keep."""
        return self._states.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned, here or in the centre."""
        self._states.set_state(state)

    def flush_deltas(self) -> State:
        """What the pieces learned since the last flush."""
        return self._states.flush_deltas()

    def apply_deltas(self, deltas: Iterable[Mapping[str, Any]]) -> None:
        """Merge the flushed deltas of other pipelines."""
        self._states.apply_deltas(deltas)
