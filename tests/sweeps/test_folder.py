import json
from pathlib import Path

import numpy as np
import pytest

from storage.curve_files import read_curve, write_curve
from storage.curves import Curve
from storage.measurements import Measurements, write_measurements
from sweeps.folder import SweepFolder, choose_folder
from sweeps.plan import make_plan
from sweeps.planned import SweepPlan
from sweeps.settings import SettingError
from tests.curve_makers import make_curve


def plan(*assignments: str) -> SweepPlan:
    return make_plan("noise_scale", "demo", ["base.checkpoint=fresh", "sweep.values=0.1", *assignments], 1)


def test_the_default_folder_names_sweep_and_identity() -> None:
    assert plan().default_folder == Path("runs") / f"noise_scale-{plan().identity[:8]}"


def test_the_same_sweep_finds_its_folder_again(tmp_path: Path) -> None:
    with SweepFolder(choose_folder(plan(), tmp_path / "out", fresh=False), plan()) as folder:
        folder.claim()
        first = folder.sweep_id
    with SweepFolder(choose_folder(plan(), tmp_path / "out", fresh=False), plan()) as folder:
        assert folder.sweep_id == first


def test_fresh_stands_beside_what_is_there(tmp_path: Path) -> None:
    with SweepFolder(tmp_path / "out", plan()) as folder:
        folder.claim()
        first = folder.sweep_id
    beside = choose_folder(plan(), tmp_path / "out", fresh=True)
    assert beside == tmp_path / "out-2"
    with SweepFolder(beside, plan()) as folder:
        folder.claim()
        assert folder.sweep_id != first


def test_a_folder_of_another_sweep_is_refused(tmp_path: Path) -> None:
    with SweepFolder(tmp_path / "out", plan()) as folder:
        folder.claim()
    with pytest.raises(SettingError, match="with other settings"):
        choose_folder(plan("trial.steps=5"), tmp_path / "out", fresh=False)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(SettingError, match="not a sweep"):
        choose_folder(plan(), tmp_path, fresh=False)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="cannot be written"):
        choose_folder(plan(), tmp_path / "file" / "out", fresh=False)


def test_two_drivers_cannot_share_a_folder(tmp_path: Path) -> None:
    with (
        SweepFolder(tmp_path / "out", plan()),
        pytest.raises(SettingError, match="another process is running"),
        SweepFolder(tmp_path / "out", plan()),
    ):
        pass


def test_only_a_whole_result_of_the_same_trial_counts_as_finished(tmp_path: Path) -> None:
    trial = plan().trials[1]
    with SweepFolder(tmp_path / "out", plan()) as folder:
        place = folder.trial(trial)
        place.mkdir(parents=True)
        assert folder.result(trial) is None
        result = {"identity": trial.identity, "curves": {"report": "report.parquet"}}
        (place / "result.json").write_text(json.dumps(result))
        (place / "history.json").write_text("[]")
        assert folder.result(trial) is None
        write_curve(place / "report.parquet", make_curve())
        assert folder.result(trial) == result
        whole = (place / "report.parquet").read_bytes()
        (place / "report.parquet").write_bytes(whole[: len(whole) // 2])
        assert folder.result(trial) is None, "a curve that was cut short counts as not measured"
        (place / "report.parquet").write_bytes(whole)
        (place / "result.json").write_text(json.dumps({**result, "identity": "another"}))
        assert folder.result(trial) is None
        for damaged in ('{"identity"', "[]", json.dumps({"identity": trial.identity})):
            (place / "result.json").write_text(damaged)
            assert folder.result(trial) is None


def finish(folder: SweepFolder, number: int) -> Path:
    """A finished trial with a curve of the documents `document-0` to `document-7`."""
    trial = folder.plan.trials[number]
    place = folder.trial(trial)
    place.mkdir(parents=True)
    write_curve(place / "report.parquet", make_curve())
    (place / "history.json").write_text("[]")
    result = {"identity": trial.identity, "curves": {"report": "report.parquet"}}
    (place / "result.json").write_text(json.dumps(result))
    return place


def test_a_whole_result_is_read_once_and_again_when_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SweepFolder(tmp_path / "out", plan()) as folder:
        place = finish(folder, 1)
        trial = folder.plan.trials[1]
        reads: list[Path] = []

        def noted(path: Path) -> Curve:
            reads.append(path)
            return read_curve(path)

        monkeypatch.setattr("sweeps.folder_files.read_curve", noted)
        assert folder.result(trial) == folder.result(trial) and len(reads) == 1
        (place / "history.json").write_text("[ ]")
        assert folder.result(trial) is not None and len(reads) == 2
        (place / "report.parquet").unlink()
        assert folder.result(trial) is None


def test_diagnostics_belong_to_a_whole_result(tmp_path: Path) -> None:
    table = Measurements("excess_nll", {"position": np.array([128, 256], np.int64)}, {"far_excess": 0.5}, {})
    with SweepFolder(tmp_path / "out", plan()) as folder:
        trial, place = folder.plan.trials[1], finish(folder, 1)
        finished = folder.result(trial)
        assert finished is not None and folder.measurements(trial, finished) == {}
        (place / "result.json").write_text(
            json.dumps({**finished, "diagnostics": {"excess_nll": "excess_nll.parquet"}})
        )
        assert folder.result(trial) is None, "a diagnostic that is missing counts as not measured"
        write_measurements(place / "excess_nll.parquet", table)
        finished = folder.result(trial)
        assert finished is not None and folder.measurements(trial, finished)["excess_nll"].equals(table)
        whole = (place / "excess_nll.parquet").read_bytes()
        (place / "excess_nll.parquet").write_bytes(whole[: len(whole) // 2])
        assert folder.result(trial) is None


def test_a_text_under_another_name_is_said_before_anything_runs(tmp_path: Path) -> None:
    names = [f"document-{number}" for number in range(8)]
    with SweepFolder(tmp_path / "out", plan()) as folder:
        folder.check_documents(["anything"])
        finish(folder, 0)
        folder.check_documents(names)
        with pytest.raises(SettingError, match="'document-0', which is now called 'renamed-0': give the files"):
            folder.check_documents([name.replace("document", "renamed") for name in names])


def test_a_mistake_leaves_the_folder_free_for_other_settings(tmp_path: Path) -> None:
    with SweepFolder(tmp_path / "out", plan()):
        pass  # ended before the folder was claimed, as when the text is too short
    assert choose_folder(plan("trial.steps=5"), tmp_path / "out", fresh=False) == tmp_path / "out"


@pytest.mark.parametrize("name", ["tune", "trials", "report"])
def test_a_folder_with_familiar_names_is_not_taken_for_a_sweep(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(SettingError, match="not a sweep"):
        choose_folder(plan(), tmp_path, fresh=False)


def test_a_damaged_plan_does_not_open_the_folder_to_another_sweep(tmp_path: Path) -> None:
    with SweepFolder(tmp_path / "out", plan()) as folder:
        folder.claim()
        place = folder.trial(plan().trials[0])
        place.mkdir(parents=True)
        (place / "result.json").write_text(json.dumps({"identity": plan().trials[0].identity}))
    (tmp_path / "out" / "sweep.json").write_text("damaged")
    assert choose_folder(plan(), tmp_path / "out", fresh=False) == tmp_path / "out"
    with pytest.raises(SettingError, match="not a sweep"):
        choose_folder(plan("trial.steps=5"), tmp_path / "out", fresh=False)


def test_a_base_whose_model_is_gone_trains_again_while_a_trial_is_yet_to_start_from_it(tmp_path: Path) -> None:
    trained = make_plan("model_size", "demo", ["sweep.sizes=tiny"], 1)
    base = trained.trials[0]
    with SweepFolder(tmp_path / "out", trained) as folder:
        place = finish(folder, 0)
        assert folder.result(base) is None
        (place / "model").mkdir()
        (place / "model" / "model.safetensors").touch()
        assert folder.result(base) is not None
        (place / "model" / "model.safetensors").unlink()
        assert folder.result(base) is None
        for number in range(1, len(trained.trials)):
            finish(folder, number)
        assert folder.result(base) is not None


def test_of_a_training_every_model_that_it_keeps_is_looked_for(tmp_path: Path) -> None:
    trained = make_plan("training_tokens", "demo", ["base.steps=4", "sweep.values=2,4", "model.size=tiny"], 1)
    training = trained.trials[0]
    with SweepFolder(tmp_path / "out", trained) as folder:
        place = finish(folder, 0)
        for name in ("model", "model-2"):
            (place / name).mkdir()
            (place / name / "model.safetensors").touch()
        assert folder.result(training) is None
        (place / "model-2").rename(place / "model-4")
        assert folder.result(training) is None
        (place / "model").rename(place / "model-2")
        assert folder.result(training) is not None
