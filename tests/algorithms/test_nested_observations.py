"""Dict and Tuple observations, and the action masks in them, from the environment to the losses."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from slow_cases import slow_with_memory
from tiny import ALGORITHMS, assert_equal_weights, train

from rlrun import EnvRunner, RLModule, RunnerSpec, ViewRequirement
from rlrun.config.problems import ConfigError
from rlrun.config.schema import EnvRunnersConfig, EnvSpec, ModelConfig
from rlrun.data import columns as col
from rlrun.data.column_data import leaves
from rlrun.data.nested import as_rows, nest
from rlrun.envs.errors import EnvError
from rlrun.experiment.rollout import rollout
from rlrun.policies.action_mask import ActionMask, NoAllowedActionError
from rlrun.policies.action_sampling import EpsilonGreedySampler
from rlrun.policies.catalog import build_module, seeded_module
from rlrun.policies.masked_module import with_action_mask
from rlrun.policies.numpy_policy import build_policy

SIGHTS, TWO_SIGHTS = "nested_envs:Sights", "nested_envs:two_sights"
MASKED = gym.spaces.Dict(
    action_mask=gym.spaces.MultiBinary(3), observation=gym.spaces.Box(-1, 1, (2,))
)
RAW = {"env_runners": {"preprocessor_pref": None}}


@pytest.mark.parametrize("name", [slow_with_memory(name) for name in ALGORITHMS])
def test_no_algorithm_takes_a_forbidden_action(built, name):
    """The environment raises; cards are seen by numpy policies, cameras by torch ones."""
    algorithm = built(name, "PlayCards")
    train(algorithm, 3)
    assert algorithm.evaluate()["episode_return_mean"] > 0
    train(built(name, "nested_envs:two_hands", multi_agent={"policies": ["p"]}), 2)


def test_masks_of_one_policy_are_enough_to_be_told_of(built, monkeypatch):
    policies = built("PPO").policies
    assert not policies.masked
    spaces = {"p": (MASKED, gym.spaces.Discrete(3)), **policies.spaces}
    monkeypatch.setattr(policies, "spaces", spaces)
    assert policies.masked


@pytest.mark.parametrize(
    ("name", "env"),
    [
        slow_with_memory("PPO, LSTM", SIGHTS),
        ("SAC", SIGHTS),
        ("IMPALA", TWO_SIGHTS),
        slow_with_memory("DQN, GRU", TWO_SIGHTS),
    ],
)
def test_a_restored_algorithm_goes_on_to_the_bit(built, tmp_path, name, env):
    sections = RAW if env == SIGHTS else {"multi_agent": {"policies": ["p"]}}
    straight, resumed = (built(name, env, **sections) for _ in range(2))
    train(straight, 2)
    straight.save(tmp_path / "checkpoint")
    resumed.restore(tmp_path / "checkpoint")
    assert train(straight, 2) == train(resumed, 2)
    assert_equal_weights(straight, resumed)


@pytest.mark.faults
def test_runs_with_remote_runners_agree(built, shared_actors):
    first, again = (built("PPO", SIGHTS, runners=1) for _ in range(2))
    assert train(first, 2) == train(again, 2)
    assert_equal_weights(first, again)


def test_parts_are_learned_from_as_the_flat_observation_is(built):
    """By default a Dict without images is flattened, here into the array that it came from."""
    flat, nested = (built("PPO", f"nested_envs:{env}") for env in ("Flat", "Nested"))
    assert train(flat, 3) == train(nested, 3)
    assert_equal_weights(flat, nested)


@pytest.mark.learning
def test_several_learners_share_nested_minibatches(built, local_ray):
    learners = {"learners": {"num_learners": 2}}
    one, two = built("PPO", SIGHTS), built("PPO", SIGHTS, **learners)
    train(one, 1), train(two, 1)
    for name, weights in one.get_weights().items():
        np.testing.assert_allclose(two.get_weights()[name], weights, atol=1e-4)


class Looks(RLModule):
    """Says what it was given."""

    def __init__(self, observation_space, action_space, model):
        super().__init__(observation_space, action_space, model)
        assert isinstance(observation_space, gym.spaces.Dict)
        self.layer = torch.nn.Linear(2, 4)

    def forward_train(self, batch):
        obs = batch[col.OBS]
        kinds = {name: leaf.dtype for name, leaf in obs.items() if name != "tokens"}
        assert kinds["camera"] == torch.uint8
        assert kinds["position"] == torch.float64
        assert kinds["action_mask"] == torch.int8
        one, several = obs["tokens"]
        assert (one.ndim, several.ndim) == (1, 2)
        logits = self.layer(obs["position"].float())
        return {col.ACTION_DIST_INPUTS: logits, col.VF_PREDS: logits[:, 0]}


def test_a_module_sees_the_structure_and_dtypes_of_the_space(built):
    use = f"{__name__}:Looks"
    train(built("PPO", SIGHTS, **RAW, model={"use": use}), 2)


def sampled(**settings):
    settings = {"num_envs_per_env_runner": 2, "rollout_fragment_length": 20, **settings}
    torch.manual_seed(0)
    return EnvRunner(RunnerSpec(EnvSpec(use=SIGHTS), EnvRunnersConfig(**settings))).sample()


@pytest.mark.parametrize("preprocessor", [None, "deepmind"])
def test_collectors_give_the_same_rows(preprocessor):
    fast, simple = (
        sampled(sample_collector=name, preprocessor_pref=preprocessor)
        for name in (None, "SimpleListCollector")
    )
    assert set(fast) == set(simple)
    for name in fast:
        for one, other in zip(leaves(nest(fast[name])), leaves(nest(simple[name])), strict=True):
            np.testing.assert_array_equal(one, other, strict=True)


def test_rows_of_a_batch_are_read_by_the_names_of_the_space():
    batch = sampled()
    obs, after = batch[col.OBS]["observation"], batch[col.NEXT_OBS]["observation"]
    assert obs["camera"].shape == (40, 8, 6)
    assert obs["camera"].dtype == np.uint8
    goes_on = batch["t"][1:] > batch["t"][:-1]
    np.testing.assert_array_equal(after["camera"][:-1][goes_on], obs["camera"][1:][goes_on])
    moved = batch.to_device("cpu")[col.OBS]["observation"]
    assert isinstance(moved["tokens"], tuple)
    assert moved["position"].dtype == torch.float64


def test_rollouts_save_each_part(tmp_path, built):
    algorithm = built("DQN", SIGHTS)
    train(algorithm, 1)
    algorithm.save(tmp_path / "checkpoint")
    rollout(tmp_path / "checkpoint", episodes=2, save=tmp_path / "rows.npz")
    with np.load(tmp_path / "rows.npz") as rows:
        assert rows["obs/camera"].shape == (14, 8, 6)
        assert rows["obs/action_mask"][np.arange(14), rows["action"]].all()


@pytest.mark.parametrize("env", [SIGHTS, TWO_SIGHTS])
def test_a_mask_that_allows_nothing_is_an_error_with_its_place(built, env):
    policies = {"multi_agent": {"policies": ["p"]}} if env == TWO_SIGHTS else {}
    algorithm = built("PPO", {"use": env, "nothing_at": 3}, **policies)
    with pytest.raises(EnvError, match=r"allows no action(.|\n)*sub-env 0, step 3"):
        algorithm.train()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", ["PPO", "PPO, LSTM", "A3C", "DQN", "Rainbow"])
def test_an_observation_may_be_a_single_number(built, name, nested):
    algorithm = built(name, {"use": "nested_envs:Angle", "nested": nested})
    before = algorithm.get_weights()
    train(algorithm, 1)
    after = algorithm.get_weights()
    assert any((before[key] != after[key]).any() for key in before)


@pytest.mark.parametrize("forbidding", [[0, 0, 1], [1, 1, 0]])
def test_a_mask_leaves_each_component_a_choice(forbidding):
    mask = ActionMask(MASKED, gym.spaces.MultiDiscrete([2, 1]))
    with pytest.raises(NoAllowedActionError, match="row 1 allows no action"):
        mask.apply(np.zeros((2, 3)), {"action_mask": np.int8([[0, 1, 1], forbidding])})


@pytest.mark.parametrize(
    "action_space",
    [
        gym.spaces.Discrete(4),
        gym.spaces.Box(-1, 1, (3,)),
        gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Discrete(1))),
    ],
)
def test_a_mask_that_does_not_fit_the_actions_is_refused(action_space):
    with pytest.raises(ConfigError, match="action_mask"):
        build_policy(MASKED, action_space, ModelConfig())


@pytest.mark.parametrize("activation", ["tanh", "gelu"], ids=["numpy", "torch"])
@pytest.mark.parametrize("action_space", [gym.spaces.Discrete(3), gym.spaces.MultiDiscrete([2, 1])])
def test_probabilities_are_those_of_the_allowed_actions(activation, action_space):
    model = ModelConfig(hidden=(8,), activation=activation)
    module = seeded_module(build_module, MASKED, action_space, model, 0)
    policy = build_policy(MASKED, action_space, model)
    policy.set_weights(np.concatenate([p.detach().numpy().ravel() for p in module.parameters()]))
    mask = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 1]] * 100, np.int8)
    seen = {"observation": np.random.default_rng(0).random((300, 2), np.float32)}
    rows = as_rows(MASKED, {**seen, "action_mask": mask})
    actions, _, extras = policy.compute_actions(rows)
    tensors = {name: torch.from_numpy(leaf.copy()) for name, leaf in nest(rows).items()}
    inputs = module.forward_train({col.OBS: tensors})[col.ACTION_DIST_INPUTS]
    np.testing.assert_allclose(
        extras[col.ACTION_DIST_INPUTS], inputs.detach(), rtol=1e-4, atol=1e-5
    )
    columns = actions if actions.ndim > 1 else actions[:, None]
    first = columns[:, 0]
    assert mask[np.arange(300), first].all()
    distribution = module.distribution
    logp, entropy = distribution.logp_entropy(inputs, torch.from_numpy(actions))
    width = 3 if isinstance(action_space, gym.spaces.Discrete) else 2
    p = torch.where(tensors["action_mask"][:, :width] != 0, inputs[:, :width].exp(), 0.0)
    p = p / p.sum(1, keepdim=True)
    torch.testing.assert_close(entropy, torch.special.entr(p).sum(1))
    torch.testing.assert_close(logp, p[np.arange(300), first].log())
    torch.testing.assert_close(distribution.kl(inputs, inputs), torch.zeros(300))
    (logp.mean() - entropy.mean()).backward()
    assert all(
        parameter.grad is None or parameter.grad.isfinite().all()
        for parameter in module.parameters()
    )


class Frames(RLModule):
    """Would see its last two observations, its mask included, as `obs`."""

    def __init__(self, observation_space, action_space, model):
        super().__init__(observation_space, action_space, model)
        self.view_requirements["obs"] = ViewRequirement(shift="-1:0")

    def forward_train(self, batch):
        raise AssertionError


def test_beside_a_mask_a_view_of_several_observations_must_not_be_named_obs():
    model = ModelConfig(use=f"{__name__}:Frames")
    with pytest.raises(ConfigError, match=r"model\.use: .*'frames'.*'obs', shift='-1:0'"):
        with_action_mask(build_module, MASKED, gym.spaces.Discrete(3), model)


def test_a_network_does_not_see_the_mask_when_it_estimates_values():
    model = ModelConfig(hidden=(8,))
    masked = seeded_module(build_module, MASKED, gym.spaces.Discrete(3), model, 0)
    plain = seeded_module(build_module, MASKED["observation"], gym.spaces.Discrete(3), model, 0)
    observations = torch.rand(5, 2)
    for allowed in (torch.ones(5, 3), torch.eye(3)[[0, 1, 2, 0, 1]]):
        seen = {"action_mask": allowed, "observation": observations}
        values = masked.compute_values({col.OBS: seen})
        torch.testing.assert_close(values, plain.compute_values({col.OBS: observations}))


def test_random_actions_are_drawn_evenly_from_the_allowed_ones():
    sampler = EpsilonGreedySampler(4, masked=True)
    sampler.set_exploration({"epsilon": 1.0})
    inputs = np.tile(np.array([[5.0, -1e9, 2.0, 1.0]], np.float32), (3000, 1))
    actions = sampler.sample(inputs, sampler.draw(np.random.default_rng(0), 1, 3000)[0])
    np.testing.assert_allclose(
        np.bincount(actions, minlength=4) / 3000, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.03
    )
    np.testing.assert_allclose(sampler.log_prob(inputs, actions), np.log(1 / 3), rtol=1e-5)


def test_spaces_that_no_array_holds_are_refused_by_name(built):
    with pytest.raises(Exception, match=r"Text space do not fit in arrays.*FilterObservation"):
        built("PPO", f"{__name__}:speaks")


def test_more_categories_than_a_network_can_have_inputs_are_refused(built):
    with pytest.raises(ConfigError, match=r"env: its observations have 1,000,000,000,000 cat"):
        built("PPO", f"{__name__}:numbered")


def numbered():
    env = gym.make("CartPole-v1")
    space = gym.spaces.Discrete(10**12)
    return gym.wrappers.TransformObservation(env, lambda _: 10**11, space)


def speaks():
    env = gym.make("CartPole-v1")
    env.observation_space = gym.spaces.Dict(word=gym.spaces.Text(5))
    return gym.wrappers.TransformObservation(env, lambda _: {"word": "hi"}, env.observation_space)
