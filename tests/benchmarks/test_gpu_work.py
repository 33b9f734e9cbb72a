"""The work that `benchmarks.gpu_work` times, on the CPU and with few rows, and its table."""

import pytest
import torch

from benchmarks import gpu_work
from benchmarks.record import Record

FEW = {"sac_work": {"rows": 8}, "ppo_work": {"rows": 8, "size": 4}}
FEW["image_work"] = FEW["ppo_work"]


@pytest.mark.parametrize("kind", FEW)
def test_all_contenders_can_do_the_work(monkeypatch, kind):
    monkeypatch.setattr(gpu_work, "DEVICE", "cpu")
    contenders = dict(getattr(gpu_work, kind)(**FEW[kind]))
    assert list(contenders)[:2] == [gpu_work.PYTORCH, "rlrun, kernel by kernel"]
    for call, updates in contenders.values():
        call()
        assert updates == (1 if kind == "sac_work" else 2)


def test_a_measurement_is_the_time_of_one_update(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert 0.0 < gpu_work.milliseconds(lambda: sum(range(1000)), 2, 0.01) < 10.0


def test_the_table_compares_each_kind_with_plain_pytorch(tmp_path):
    settings = {"gpu": "a GPU", "torch": "2.0"}
    record = Record.open("gpu_work", settings, path=tmp_path / "x.json", resume=False)
    for name, ms in ((gpu_work.PYTORCH, 6.0), ("rlrun, CUDA graphs", 2.0)):
        record.add(f"SAC: {name}", 1, load=0.0, result={"ms": ms})
    table = gpu_work.table(record)
    assert "| SAC: rlrun, CUDA graphs | 2.000 (2.000–2.000) | 3.00 (3.00–3.00) |" in table
    assert "- a GPU, torch 2.0." in table
