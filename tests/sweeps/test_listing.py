"""Sweeps are files that users write too: what cannot be a sweep is said in one sentence before anything starts."""

from pathlib import Path

import pytest

from sweeps.plan import make_plan
from sweeps.planned import SweepPlan
from sweeps.settings import SettingError

OWN = """
from sweeps.registry import NamedSweep
from sweeps.trials import Trial, base_trial, post_training


def trials(settings, seeds):
    base = base_trial(settings, seeds[0])
{body}


given = dict(
    name="mine", question="Mine?", why="So.", paper_found="Nothing.", contradicts="Nothing.", varies="",
    presets={{"demo": {{"trial.steps": 7}}}}, trials=trials,
)
SWEEP = NamedSweep(**{{**given, **dict({more})}})
"""
PAIR = "return [base, post_training(settings, base, 'zero', 0, {changes})]"


def plan_of(folder: Path, body: str, more: str = "", *assignments: str) -> SweepPlan:
    path = folder / "mine.py"
    path.write_text(OWN.format(body=f"    {body}", more=more))
    return make_plan(str(path), "demo", list(assignments), 1)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return []", "mine lists no trial"),
        ("return None", "cannot list its trials: TypeError"),
        ("return {}['x']", r"cannot list its trials: KeyError: 'x' \(.*mine.py, line 8\)"),
        ("return 1 / 0", "cannot list its trials: ZeroDivisionError"),
        ("return [base.config]", "is no Trial of sweeps.trials"),
        (PAIR.format(changes="{'eval.length': 2048}"), "differ in eval.length"),
        (PAIR.format(changes="{'data.files': ('other.txt',)}"), "differ in data.files"),
        (PAIR.format(changes="{'trial.device': 'cuda'}"), "differ in trial.device"),
        (PAIR.format(changes="{'trial.nope': 1}"), "no setting 'trial.nope'"),
        (PAIR.format(changes="{'tracking.uri': 'x'}"), "tracking.uri is no setting of a trial"),
        (PAIR.format(changes="{'trial.steps': 7.0}"), "trial.steps is 7.0; write a whole number"),
        (PAIR.format(changes="{'intervention.parts': 'conv'}"), "intervention.parts is 'conv'; write a tuple of texts"),
    ],
)
def test_a_list_that_is_none(tmp_path: Path, body: str, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence) as caught:
        plan_of(tmp_path, body)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("varies='model.nope'", "varies of the sweep mine is no setting of a trial: 'model.nope'"),
        ("varies='trial.device'", "trial.device, which is no number"),
        ("facets=('sweep.values',)", "facets of the sweep mine is no setting of a trial"),
        ("name='a/../b'", "is called 'a/../b'; write letters"),
        ("presets={'demo': {'nope': 1}}", "no setting 'nope'"),
        ("presets={'demo': {'trial.rows': '24'}}", "trial.rows is '24'; write a whole number"),
    ],
)
def test_a_definition_that_is_none(tmp_path: Path, more: str, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        plan_of(tmp_path, "return [base]", more)


def test_a_function_may_yield_its_trials(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "yield base\n    yield post_training(settings, base, 'zero', 0)")
    assert [trial.label for trial in plan.trials] == ["base", "zero"]


def test_one_trial_under_two_names_is_refused(tmp_path: Path) -> None:
    twins = "return [post_training(settings, base, 'state_passing', 0, {'bank.shards': n}) for n in (1, 2)]"
    with pytest.raises(SettingError, match="'state_passing 1' and 'state_passing 2' .* differ in nothing that changes"):
        plan_of(tmp_path, twins, "named=('bank.shards',)")


def test_a_whole_number_and_the_same_number_are_one_trial(tmp_path: Path) -> None:
    changed = "return [post_training(settings, base, 'random_noise', 0, {{'intervention.sigma': {sigma}}})]"
    one, same = (plan_of(tmp_path, changed.format(sigma=sigma)).identity for sigma in ("1", "1.0"))
    assert one == same


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ("{'model.size': 'demo-64'}", "zero is a mamba2 demo-64, but starts from the model of a mamba2 demo"),
        ("{'base.step': 7}", "zero starts from step 7 of its base, which keeps none of that step"),
    ],
)
def test_a_base_that_a_trial_cannot_start_from(tmp_path: Path, changes: str, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        plan_of(tmp_path, PAIR.format(changes=changes), "", "base.checkpoint=trained")


def test_a_base_that_trains_nothing_leaves_no_model(tmp_path: Path) -> None:
    body = (
        "own = Trial(config=settings.trial_config('base', seed=0, changes={'base.checkpoint': 'demo-mamba2'}))\n"
        "    return [own, Trial(config=settings.trial_config('zero', seed=0), base=own)]"
    )
    with pytest.raises(SettingError, match="starts from a trial of the arm base, which trains no model"):
        plan_of(tmp_path, body, "", "base.checkpoint=trained")


def test_whatever_names_a_trial_its_folder_has_a_plain_name(tmp_path: Path) -> None:
    body = "return [Trial(config=settings.trial_config('zero', seed=0), arm='../a b/<c>')]"
    name = plan_of(tmp_path, body).trials[0].name
    assert name.startswith("..-a-b-c--") and "/" not in name
