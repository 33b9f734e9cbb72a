"""Attributes of RLlib's classes that do not exist here, with errors that name the replacement.

Owns: the errors. Must not know: what the classes do.
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
"""Attributes of RLlib's algorithms."""


class OldNames:
    """Base of classes whose missing attributes may be names that RLlib has or had.

    Attributes:
        old_names: old name -> advice for the error message.
    """

    old_names: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # a type checker is to find the missing ones itself

        def __getattr__(self, name: str) -> Any:
            advice = type(self).old_names.get(name)
            if advice is None:
                own = [known for known in dir(type(self)) if not known.startswith("_")]
                hint = suggestion(name, own)
            else:
                hint = f": {advice}"
            raise AttributeError(f"{type(self).__name__} has no {name!r}{hint}")
