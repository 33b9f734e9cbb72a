"""Errors of env runners as such, not of the environments in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlrun.actors.actor_manager import CallResult


class EnvRunnersError(RuntimeError):
    """Env runners failed in a way that the fault-tolerance settings do not cover."""


class RunnerDiedError(EnvRunnersError):
    """The process of a runner ended."""


def death_of(result: CallResult) -> str:
    """One line out of Ray's twenty."""
    text = " ".join(str(result.error).split())
    cause = text.rpartition("Worker exit detail: ")[2]
    return f"env runner {result.actor_id} died: {cause}"
