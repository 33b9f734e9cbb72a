"""What an actor of an `ActorPool` does between two tests.

Functions are pickled by the names of their modules, so each actor imports this one: it must not
import pytest or torch, which takes seconds.
"""

import logging
from typing import Any


def empty(actor: Any) -> None:
    """Forget all that the last test has constructed."""
    vars(actor).clear()
    logging.getLogger("rlrun").handlers.clear()


def construct(actor: Any, *arguments: Any) -> None:
    """Construct the actor of the next test."""
    actor.__init__(*arguments)
