"""Every snippet of docs/trajectory-views.md runs, one after the other, and learns."""

import sys
import types

import pytest
from pages import blocks, execute, page

import rlrun

SNIPPETS = blocks(page("trajectory-views.md"), "python")


@pytest.fixture(scope="module")
def views():
    """The page's definitions, in a module that import paths reach."""
    module = types.ModuleType("views_page")
    sys.modules["views_page"] = module
    for snippet in SNIPPETS:
        execute(snippet, module.__dict__, "docs/trajectory-views.md")
    module.FourFrames.__module__ = module.LeakyTrace.__module__ = "views_page"
    yield module
    del sys.modules["views_page"]


def test_there_are_snippets(views):
    assert len(SNIPPETS) == 6
    assert views.batch["next_actions"].shape == views.batch["actions"].shape


def test_the_callback_adds_what_the_view_shows(views):
    for episode in views.batch.split_by_episode("eps_id"):
        viewed = episode["next_actions"].tolist()
        views.NextActions().on_postprocess_trajectory(postprocessed_batch=episode)
        assert episode["next_actions"].tolist() == viewed


def small(views, env, **arguments):
    config = views.PPOConfig().environment(env, **arguments).debugging(seed=1)
    return config.training(train_batch_size=128, minibatch_size=64)


def test_the_network_with_a_view_learns_from_it(views, built):
    algorithm = built(small(views, "CartPole-v1").model(use="views_page:FourFrames"))
    batch = algorithm.sample()
    assert batch["obs"].shape == (128, 4, 4)
    assert batch.shared("obs")[0] is batch.shared("new_obs")[0]
    assert algorithm.train()["training_iteration"] == 1


def test_the_module_with_states_of_its_own_remembers_and_trains(views, built):
    config = small(views, "RepeatAfterMe", length=9)
    algorithm = built(config.model(use="views_page:LeakyTrace", width=8, max_seq_len=4))
    batch = algorithm.sample()
    assert batch["last_actions"].shape == (128, 2)
    assert max(batch["seq_lens"]) == 4
    assert batch["state_in_0"].shape == (len(batch["seq_lens"]), 8)
    before = algorithm.get_weights()["default_policy/rate"]
    assert algorithm.train()["training_iteration"] == 1
    learned = algorithm.get_weights()["default_policy/rate"] != before
    assert learned.all(), "through time"


@pytest.mark.learning
def test_the_module_with_states_of_its_own_is_exported(views, built, tmp_path):
    pytest.importorskip("onnxruntime")
    config = small(views, "RepeatAfterMe", length=9)
    algorithm = built(config.model(use="views_page:LeakyTrace", width=8, max_seq_len=4))
    algorithm.save(tmp_path / "saved")
    files = {form: tmp_path / form for form in ("onnx", "torchscript")}
    assert len(rlrun.export(tmp_path / "saved", **files, trust=True)) == 2


def test_the_network_with_a_memory_trains(views, built):
    assert built(views.config.debugging(seed=1)).train()["env_steps"] == 512
