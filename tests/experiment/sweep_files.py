"""A small experiment for sweeps, as text and resolved."""

from rlrun.config.loader import resolve
from rlrun.config.yaml_tree import parse_yaml

FILE = """
algorithm: PPO
env: CartPole-v1
seed: 7
stop: {env_steps: 6400}
training: {train_batch_size: 64, minibatch_size: 32}
"""


def experiment(text=""):
    return resolve(parse_yaml(FILE + text, "exp.yaml")).experiment
