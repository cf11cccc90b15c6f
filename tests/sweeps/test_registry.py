from pathlib import Path

import pytest

from sweeps.plan import make_plan
from sweeps.registry import get_sweep
from sweeps.settings import SettingError

OWN = """
from sweeps.registry import NamedSweep
from sweeps.trials import base_trial, post_training


def trials(settings, seeds):
    base = base_trial(settings, seeds[0])
    return [base, *(post_training(settings, base, "state_passing", seed) for seed in seeds)]


SWEEP = NamedSweep(
    name="mine", question="Mine?", why="So.", paper_found="Nothing.", contradicts="Nothing.", varies="",
    presets={"demo": {"trial.steps": 7}}, trials=trials,
)
"""


def written(folder: Path, text: str) -> str:
    path = folder / "mine.py"
    path.write_text(text)
    return str(path)


def test_a_sweep_of_ones_own_is_a_file_anywhere(tmp_path: Path) -> None:
    plan = make_plan(written(tmp_path, OWN), "demo", ["trial.rows=8"], 2)
    assert plan.sweep.name == "mine" and plan.default_folder.name.startswith("mine-")
    assert [trial.label for trial in plan.trials] == ["base", "state_passing seed 0", "state_passing seed 1"]
    assert {(trial.config.trial.steps, trial.config.trial.rows) for trial in plan.trials} == {(7, 8)}
    assert plan.command == f"python -m sweeps.run {tmp_path}/mine.py --seeds 2 --set trial.rows=8"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("SWEEPS = 1", "mine.py defines no SWEEP; write SWEEP = NamedSweep"),
        ("import no_such_module", r"mine.py cannot be run: ModuleNotFoundError: No module named .*mine.py, line 1\)"),
        ("x = (", "mine.py cannot be run: SyntaxError"),
    ],
)
def test_a_file_that_holds_none_says_so_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence) as caught:
        get_sweep(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(SettingError, match="there is no file nowhere/mine.py"):
        get_sweep("nowhere/mine.py")


def test_a_trial_must_be_listed_after_the_one_it_starts_from(tmp_path: Path) -> None:
    turned = OWN.replace("[base, *(", "[*(").replace("for seed in seeds)]", "for seed in seeds), base]")
    with pytest.raises(SettingError, match="starts from a trial that the sweep mine does not list before it"):
        make_plan(written(tmp_path, turned), "demo", ["base.checkpoint=trained"], 1)


def test_the_example_of_the_documentation_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "own_sweeps.md").read_text()
    example = page.split("```python\n")[1].split("```")[0]
    plan = make_plan(written(tmp_path, example), "demo", ["sweep.values=0.5"], 1)
    assert [trial.label for trial in plan.trials] == [
        *("base", "zero", "state_passing recurrent 0.5", "state_passing recurrent+conv 0.5")
    ]
