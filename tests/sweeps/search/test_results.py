"""What is shown of a study: its table, its plots, its best trials, and the dashboard that opens it."""

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pytest
from optuna.storages import InMemoryStorage
from optuna_dashboard import wsgi
from werkzeug.test import Client

from sweeps.search.ledger import Ledger
from sweeps.search.plan import SearchPlan, check_store_of
from sweeps.search.plots import write_plots
from sweeps.search.study import open_storage
from sweeps.search.trial_table import best_trials, summary_lines, trial_rows, write_trial_table
from sweeps.settings import SettingError
from tests.sweeps.search.searches import Bench, open_bench, select_curve, small_plan

PNG = b"\x89PNG\r\n\x1a\n"


def bench_in(tmp_path: Path, plan: SearchPlan) -> Iterator[Bench]:
    storage = InMemoryStorage()
    with open_bench(tmp_path / "out", plan, lambda: storage) as one:
        yield one


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from bench_in(tmp_path, small_plan("full", "search.contexts=64", count=8))


@pytest.fixture
def ledger(bench: Bench) -> Ledger:
    """Four complete trials, of which trial 2 is the best, one stopped early, one failed."""
    ledger = bench.ledger()
    bench.run(ledger, [1.4, 1.3, 1.1, 1.2])
    stopped, lost = ledger.next(), ledger.next()
    assert stopped is not None and lost is not None
    assert not ledger.report(stopped, 1, select_curve(1.0))
    assert ledger.report(lost, 1, select_curve(3.0))
    ledger.end(lost)
    bench.fail(stopped, "RuntimeError: out of | memory")
    ledger.end(stopped, error=True)
    return ledger


def test_the_table_holds_every_trial_with_state_value_settings_and_identity(ledger: Ledger, tmp_path: Path) -> None:
    rows = trial_rows(ledger)
    assert [row.state for row in rows] == [*["COMPLETE"] * 4, "FAIL", "PRUNED"]
    assert [row.number for row in rows if row.best] == [2]
    assert rows[2].values == pytest.approx((1.1,)) and rows[4].values == ()
    assert rows[4].reason == "RuntimeError: out of | memory" and rows[5].step == 1
    assert all(row.identity == ledger.planned[row.number].identity for row in rows)
    markdown, table = write_trial_table(tmp_path, ledger.plan.objective.names, rows)
    with table.open() as file:
        written = list(csv.DictReader(file))
    assert [float(row["far"]) for row in written[:4]] == pytest.approx([1.4, 1.3, 1.1, 1.2])
    assert written[0]["arm"] == rows[0].settings["arm"]
    assert written[4]["reason"] == "RuntimeError: out of | memory"
    lines = markdown.read_text().splitlines()
    assert lines[4].startswith("| 2 * | COMPLETE | 1.1 |")
    assert "out of \\| memory" in lines[6], "a bar within a cell ends no column"
    json.dumps([row.as_json() for row in rows], allow_nan=False)


def test_the_best_trial_is_chosen_among_the_complete_ones(ledger: Ledger) -> None:
    # The stopped one was at 1.0 when it failed; it has no final value.
    assert [trial.label.split()[-1] for trial in best_trials(ledger)] == ["2"]
    lines = summary_lines(ledger, trial_rows(ledger))
    assert "6 trials (4 complete, 1 stopped early, 1 failed)" in lines[0] and "select split" in lines[0]
    assert lines[1].startswith("best: trial 2: far 1.1; arm=")


def test_plots_are_pictures_and_leave_no_style_behind(ledger: Ledger, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    files = write_plots(tmp_path, ledger.study)
    names = {path.name for path in files}
    assert {"search_history.png", "search_slice.png", "search_importance.png", "search_intermediate.png"} == names
    assert all(path.read_bytes().startswith(PNG) for path in files)
    changed = {name for name, value in matplotlib.rcParams.items() if before[name] != value}
    assert changed <= {"backend", "backend_fallback"}
    from matplotlib import pyplot

    assert pyplot.get_fignums() == []


def test_too_few_trials_have_no_plots(bench: Bench, tmp_path: Path) -> None:
    ledger = bench.ledger()
    bench.run(ledger, [1.0])
    assert write_plots(tmp_path, ledger.study) == []


def test_two_objectives_have_plots_of_each_and_a_front(tmp_path: Path) -> None:
    for bench in bench_in(tmp_path, small_plan("noise", objective="far_and_near")):
        ledger = bench.ledger()
        bench.run(ledger, [1.3, 1.2, 1.1])
        names = {path.name for path in write_plots(tmp_path, ledger.study)}
        assert {"search_pareto_front.png", "search_history_far.png", "search_history_near.png"} <= names
        assert [row.number for row in trial_rows(ledger) if row.best] == [2]


def test_a_study_without_a_finite_trial_has_no_best(bench: Bench, tmp_path: Path) -> None:
    ledger = bench.ledger()
    bench.run(ledger, [math.nan])
    assert best_trials(ledger) == []
    assert write_trial_table(tmp_path, ledger.plan.objective.names, trial_rows(ledger))
    assert len(summary_lines(ledger, trial_rows(ledger))) == 1


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_the_dashboard_lists_the_study_and_its_trials(kind: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db" if kind == "sqlite" else f"journal:{tmp_path}/study.log"
    with open_bench(tmp_path / "out", small_plan(), lambda: open_storage(url)) as one:
        ledger = one.ledger()
        one.run(ledger, [1.2, 1.1])
    client = Client(wsgi(open_storage(url)))
    answer = client.get("/api/studies")
    assert answer.status_code == 200
    (study,) = json.loads(answer.data)["study_summaries"]
    assert study["study_name"] == ledger.study.study_name
    detail = json.loads(client.get(f"/api/studies/{study['study_id']}?after=0").data)
    assert [trial["state"] for trial in detail["trials"]] == ["Complete", "Complete"]


@pytest.mark.parametrize(
    ("store", "sentence"),
    [
        ("study.db", "write sqlite:///FILE, journal:FILE or the address of a database"),
        ("journal:", "write sqlite:///FILE, journal:FILE"),
        ("sqlite:///mlflow.db", "Optuna and MLflow cannot share a database"),
        ("sqlite:////nowhere/at/all/study.db", "there is no folder /nowhere/at/all"),
        ("journal:/nowhere/study.log", "there is no folder /nowhere"),
    ],
)
def test_a_store_that_cannot_be_one_is_refused_in_a_sentence(store: str, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        check_store_of(small_plan(), store)


def test_a_store_that_does_not_open_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("this is no database, and longer than its header would be" * 20)
    with pytest.raises(SettingError, match="cannot be opened"):
        open_storage(f"sqlite:///{tmp_path}/study.db")
