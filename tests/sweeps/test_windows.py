from pathlib import Path

import pytest

from storage.settings import DataSettings
from sweeps.settings import SettingError
from sweeps.windows import check_windows
from workers.intervention_settings import InterventionSettings
from workers.settings import EvalSettings, TrialConfig, TrialSettings


@pytest.fixture
def data(tmp_path: Path) -> DataSettings:
    """Forty documents of 1000 bytes, and one of 101 that is for training."""
    lines = [f"{number:03}" + "x" * 997 for number in range(40)] + ["1" + "y" * 100]
    (tmp_path / "texts.jsonl").write_text("".join(f'{{"text": "{line}"}}\n' for line in lines))
    return DataSettings(files=(str(tmp_path / "texts.jsonl"),))


def config(data: DataSettings, arm: str, context: int = 64, factor: int = 4) -> TrialConfig:
    return TrialConfig(
        arm=arm,
        data=data,
        intervention=InterventionSettings(factor=factor),
        trial=TrialSettings(context=context, rows=24),
        eval=EvalSettings(length=500, windows=2, select_windows=1, apart_windows=0),
    )


def test_the_windows_of_every_arm_are_looked_for(data: DataSettings, tmp_path: Path) -> None:
    arms = ["base", "zero", "tbtt", "longer_context"]
    check = check_windows([config(data, arm) for arm in arms], tmp_path / "cache")
    assert len(check.report_documents) == 2
    assert check.skipped == 1, "the short document has windows of 64, but none of 256"
    assert check_windows([config(data, "zero")], tmp_path / "cache").skipped == 0


def test_a_longer_window_that_no_document_holds_names_both_settings(data: DataSettings, tmp_path: Path) -> None:
    check_windows([config(data, "longer_context", context=200)], tmp_path / "cache")
    with pytest.raises(SettingError, match=r"trial.context is 1200, longer .* \(trial.context=300 x .*factor=4\)"):
        check_windows([config(data, "zero", 300), config(data, "longer_context", 300)], tmp_path / "cache")


def test_ordered_windows_are_checked_too(data: DataSettings, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="trial.context is 2000, longer than every document"):
        check_windows([config(data, "tbtt", context=2000)], tmp_path / "cache")
