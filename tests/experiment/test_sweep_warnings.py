"""What a sweep tells of warnings: of its file, and of the runs of its trials."""

import logging
from types import SimpleNamespace
from unittest.mock import Mock

from sweep_files import FILE

from rlrun.experiment.run_folder import RunFolder
from rlrun.experiment.run_log import RunLog
from rlrun.experiment.sweep.sweep import resume_sweep, run_sweep
from rlrun.experiment.sweep.trial import IDENTITY
from rlrun.experiment.sweep.trials import Trial, TrialTable
from rlrun.experiment.sweep.tune import Events


def test_warnings_of_a_file_that_hold_at_all_points_are_told(tmp_path, monkeypatch, capsys):
    for name in ("start_ray", "stop_ray", "cluster_resources", "trials_at_once"):
        monkeypatch.setattr(f"rlrun.experiment.sweep.sweep.{name}", Mock())
    monkeypatch.setattr("rlrun.experiment.sweep.tune.run_trials", Mock())
    (tmp_path / "exp.yaml").write_text(f"""{FILE}
model: {{lstm_cell_size: 8}}
learners: {{max_num_learner_restarts: 1}}
sweep: {{space: {{model.use_lstm: {{grid: [false, true]}}}}}}
""")
    folder = tmp_path / "sweep"
    run_sweep(tmp_path / "exp.yaml", run_dir=folder, console="quiet")
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2] for line in told] == [
        f"{tmp_path}/exp.yaml:9:12: learners.max_num_learner_restarts: "
        "has no effect: learners.num_learners is 0"
    ]
    assert told[0].partition(": ")[2] in (folder / "log.txt").read_text()
    resume_sweep(folder, console="quiet")
    assert "learners.max_num_learner_restarts: has no effect" in capsys.readouterr().err


def test_a_warning_of_trials_is_passed_on_once(tmp_path, caplog):
    trials = [Trial(trial=i, point=i, seed=1, settings={"a": i}) for i in (1, 2)]
    table = TrialTable(tmp_path / "trials.jsonl", trials, metric="m", mode="max")
    events = Events(tmp_path, table, Mock())
    for folder in ("trials/0001", "trials/0002"):
        (tmp_path / folder).mkdir(parents=True)
        with RunLog(tmp_path / folder / "log.txt", Mock()):
            log = logging.getLogger("rlrun.algorithms")
            log.info("begins")
            log.warning("the last session ended without an outcome: %s", RunFolder.KILLED)
            log.warning("WARNING 1\nof two lines")
            logging.getLogger("py.warnings").warning("of a library")
    caplog.clear()
    for number in (1, 2):
        config = {IDENTITY: {"trial": number}, "a": 1}
        trial = SimpleNamespace(config=config, error_file=None)
        (events.on_trial_complete, events.on_trial_error)[number - 1](1, [], trial)
    assert caplog.messages == ["trials/0001: WARNING 1"]
