"""EnvError: the one exception for failures of the user's environment.

It is pickled between processes, so it holds plain text only: first in its message is the user's own
traceback, without frames of Ray or rlrun.
"""

from __future__ import annotations

from typing import Any, Literal

from rlrun.config.problems import user_traceback
from rlrun.data.seeding import Role

NO_ALLOWED_ACTION = "the action mask allows no action"
RAISED = (Exception, SystemExit, GeneratorExit)
"""Exceptions of environments; with SystemExit, since ``sys.exit`` must not look like a success."""
_LONGEST = 10_000  # characters of a reason, and of a traceback
EnvPhase = Literal[
    "constructor", "reset", "step", "observation", "action", "get_state", "set_state"
]

RETURNED = {
    "reset": "(observation, info)",
    "step": "(observation, reward, terminated, truncated, info)",
}
"""What an environment of one agent returns."""


def is_of_reading(error: BaseException) -> bool:
    """Whether the error was raised in reading what a call returned, rather than in the call."""
    traceback = error.__traceback__  # from the function that caught the error inwards
    in_the_call = traceback is None or traceback.tb_next is not None
    return isinstance(error, TypeError | ValueError | OverflowError) and not in_the_call


class EnvFailure(Exception):  # noqa: N818 - it becomes an EnvError, with its place
    """An environment in another process raised, or the process ended."""

    def __init__(self, reason: str, user_traceback: str = "") -> None:
        super().__init__(reason, user_traceback)
        self.reason, self.user_traceback = reason, user_traceback

    @classmethod
    def from_exception(cls, error: BaseException) -> EnvFailure:
        """The exception of an environment as text, with only the user's own frames."""
        if isinstance(error, EnvFailure):
            return error
        try:
            reason = f"{type(error).__name__}: {error}"
        except Exception:  # its own ``__str__`` raises
            reason = type(error).__name__
        return cls(_shortened(reason), _shortened(user_traceback(error)))


def _shortened(text: str) -> str:
    """The text, without its middle if it is long: some exceptions print all of their data."""
    if len(text) <= _LONGEST:
        return text
    cut = f"... {len(text) - _LONGEST:,} characters ..."
    return text[: _LONGEST // 2] + cut + text[-_LONGEST // 2 :]


class TooManyFailures(Exception):  # noqa: N818 - it becomes a part of an EnvError
    """A failure of an environment is not tolerated; the message is the reason, in one line."""


class EnvError(Exception):
    """A user's environment raised, or broke its own contract.

    Attributes:
        env_id: name of the environment in the experiment.
        role: whether it happened in training or in evaluation; set by the runner.
        runner_index: 0 for the runner in the driver, 1..n for Ray actors; set by the runner.
        env_index: index of the sub-environment within its runner.
        env_step: 0-based step of the episode at which it happened; -1 before the first step.
        phase: call of the environment during which it happened.
        user_traceback: the user's traceback as text, empty if nothing was raised.
        reason: one line: the exception, or what is wrong with the value that was returned.
        note: one more line: why the failure is not tolerated; empty if none ever is.
    """

    exit_code = 1

    def __init__(
        self,
        env_id: str,
        phase: EnvPhase,
        reason: str,
        *,
        user_traceback: str = "",
        runner_index: int = 0,
        env_index: int = 0,
        env_step: int = -1,
        note: str = "",
    ) -> None:
        super().__init__(env_id, phase, reason)  # these three are what pickle passes on
        self.env_id, self.phase, self.reason = env_id, phase, reason
        self.user_traceback, self.note = user_traceback, note
        self.role = Role.TRAIN
        self.runner_index, self.env_index, self.env_step = runner_index, env_index, env_step

    @classmethod
    def from_exception(
        cls, error: BaseException, env_id: str, phase: EnvPhase, **place: Any
    ) -> EnvError:
        """Wrap an exception of the environment, keeping only the user's own frames."""
        failure = EnvFailure.from_exception(error)
        if phase in RETURNED and is_of_reading(error):  # a traceback of rlrun would not help
            reason = f"{failure.reason}: {phase}() must return {RETURNED[phase]}"
            failure = EnvFailure(reason)
        return cls(env_id, phase, failure.reason, user_traceback=failure.user_traceback, **place)

    def __str__(self) -> str:
        # The last line of a traceback is the reason already.
        head = self.user_traceback.rstrip() if self.user_traceback else self.reason
        return f"{head}\n{self._place}"

    @property
    def in_one_line(self) -> str:
        """The reason and the place, without the traceback."""
        return f"{self.reason}; {self._place}"

    @property
    def _place(self) -> str:
        runner = "evaluation runner" if self.role is Role.EVALUATION else "runner"
        where = f"env {self.env_id!r}, {runner} {self.runner_index}, sub-env {self.env_index}"
        if self.env_step >= 0:
            where += f", step {self.env_step}"
        return f"{self.phase} failed: {where}{self.note and '; ' + self.note}"
