"""A search from the command line: what it shows, and a kill in the middle of it."""

import json
import signal
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from tests.cli.command_line import Command, start_driver, sweep_flags
from tests.cli.stores import children, runs

SEARCH = [
    *("search", "--space", "noise", "--trials", "4", "--out", "out"),
    *sweep_flags("eval.every=1", "eval.apart_windows=0", "trial.steps=6"),
]


def test_a_dry_run_shows_space_settings_number_time_and_bytes(run_command: Command) -> None:
    shown = run_command("search", "--space", "full", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    for words in (
        "intervention.sigma",
        "0.001 to 1",
        "20 trials",
        "expected",
        "state banks",
        "select split",
        "steps 20",
    ):
        assert words in shown.stdout, words


def test_a_dry_run_as_json_holds_space_and_references(run_command: Command) -> None:
    shown = run_command("search", "--space", "passing", "--trials", "3", "--dry-run", "--json")
    plan = json.loads(shown.stdout)
    assert plan["search_trials"] == 3 and plan["space"]["name"] == "passing"
    assert [trial["arm"] for trial in plan["trials"]] == ["base", "zero"]
    assert plan["objective"]["name"] == "far"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["search", "--dry-run"], "a search needs a space; write --space noise"),
        (["search", "--space", "noise", "--seeds", "3", "--dry-run"], "leave --seeds out"),
        (["search", "--space", "noise", "--trials", "0", "--dry-run"], "--trials is 0"),
        (["noise_scale", "--space", "noise", "--dry-run"], "--space belongs to the search"),
    ],
)
def test_flags_that_do_not_go_together_are_one_sentence(run_command: Command, flags: list[str], sentence: str) -> None:
    refused = run_command(*flags)
    assert refused.returncode == 2 and sentence in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_the_list_shows_the_search(run_command: Command) -> None:
    assert "search" in [line.split()[0] for line in run_command("--list").stdout.splitlines() if line.strip()]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_killed_search_goes_on_and_neither_repeats_nor_forgets(run_command: Command, tmp_path: Path) -> None:
    def study() -> optuna.Study:
        return optuna.load_study(study_name=None, storage=f"sqlite:///{tmp_path}/out/study.db")

    def is_under_way() -> bool:
        return any(tmp_path.glob("out/trials/*trial*/checkpoints/*"))

    with start_driver(tmp_path, *SEARCH, until=is_under_way) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = study().get_trials()
    assert TrialState.RUNNING in [told.state for told in before]

    done = run_command(*SEARCH, timeout=400)
    assert done.returncode == 0, done.stderr
    after = study().get_trials()
    assert len(after) == 4 and {told.state for told in after} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert [told.params for told in after[: len(before)]] == [told.params for told in before]
    assert len({told.user_attrs["identity"] for told in after}) == 4
    (parent,) = (run.info.run_id for run in runs(tmp_path, "search") if "mlflow.parentRunId" not in run.data.tags)
    names = children(tmp_path, parent, "search")
    assert len(names) == 6, "the base, the control and one run for each trial"
    assert "best: trial" in done.stdout and "optuna-dashboard sqlite:///" in done.stdout
    assert (tmp_path / "out" / "report" / "search_trials.md").is_file()
