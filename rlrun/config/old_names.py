"""Errors for attributes of RLlib's classes that rlrun's classes lack, with what to use.

Must not know: what the classes do.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from rlrun.config.registry import suggestion

OF_ALGORITHMS: Mapping[str, str] = {
    **dict.fromkeys(("workers", "local_worker"), "use env_runner_group"),
    "evaluation_workers": "use evaluator",
    "get_policy": "use acting_policy()",
    "compute_actions": "write acting_policy(num_envs=...).compute_actions(observations)",
}
"""Attribute of RLlib's algorithms -> what to use instead."""


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
