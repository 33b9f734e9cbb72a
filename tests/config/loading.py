"""What users see when they load a file."""

import pytest

from rlrun.config.loader import load, load_experiment
from rlrun.config.problems import ConfigError


def errors(file, overrides=()):
    """The error lines of a file with these overrides; at least one."""
    with pytest.raises(ConfigError) as caught:
        load_experiment(file, overrides)
    return caught.value.render().splitlines()


def warnings(file):
    return [problem.render() for problem in load(file).warnings]
