"""The report at the end of a session: of the plan at hand, with the reasons that the session knows."""

import json
from pathlib import Path

from storage.curve_files import write_curve
from sweeps.folder import SweepFolder
from sweeps.plan import make_plan
from sweeps.planned import SweepPlan
from sweeps.report.make import make_report
from sweeps.report.source import read_sweep
from tests.curve_makers import make_curve


def plan() -> SweepPlan:
    return make_plan("noise_scale", "demo", ["base.checkpoint=fresh", "sweep.values=0.1"], 1)


def finish(folder: SweepFolder, number: int) -> None:
    trial = folder.plan.trials[number]
    place = folder.trial(trial)
    place.mkdir(parents=True)
    for split in ("select", "report"):
        write_curve(place / f"{split}.parquet", make_curve(rise=0.1 * number))
    ran = {"device": "cpu", "workers": 1, "kernel": "chunked", "seconds": {"training": 1.0}}
    curves = {split: f"{split}.parquet" for split in ("select", "report")}
    (place / "result.json").write_text(json.dumps({"identity": trial.identity, "curves": curves, **ran}))


def test_the_report_names_what_failed_and_can_be_written_anew_from_the_folder(tmp_path: Path) -> None:
    with SweepFolder(tmp_path / "sweep", plan()) as folder:
        folder.claim()
        finish(folder, 0)
        finish(folder, 1)
        lost = folder.plan.trials[2]
        stranger = make_plan("noise_scale", "demo", ["base.checkpoint=fresh", "sweep.values=0.7"], 1).trials[2]
        report = make_report(folder.plan, folder, [(lost, "out of memory"), (stranger, "not in the plan")])
    assert [row["arm"] for row in report.rows] == ["base", "zero"]
    reasons = {failed.label: failed.reason for failed in report.failed}
    assert reasons["random_noise 0.1"] == "out of memory" and reasons["random_noise 0.7"] == "not in the plan"
    assert [path.name for path in report.shown] == ["comparison.png", "report.html"]
    assert all(path.is_file() and path.parent == folder.report for path in report.files)
    again = read_sweep(folder.root)
    assert [one.label for one in again.results] == ["base", "zero"]
    assert again.plan["command"] == folder.plan.command and again.about["varies"] == "intervention.sigma"
