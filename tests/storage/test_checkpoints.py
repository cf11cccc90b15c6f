import logging
from pathlib import Path

import pytest

from storage.checkpoints import check_newest_layout, newest_whole, partial_folder, publish
from storage.errors import StorageError

LAYOUT = {"trial.workers": 2, "trial.zero_stage": 1}


def write(root: Path, step: int, identity: str = "a") -> Path:
    partial = partial_folder(root, step)
    (partial / "engine").mkdir(parents=True)
    (partial / "engine" / "weights").write_bytes(bytes([step]) * 100)
    (partial / "loop.json").write_text(f'{{"step": {step}}}')
    return publish(root, step, identity, LAYOUT)


def test_nothing_is_found_where_nothing_was_written(tmp_path: Path) -> None:
    assert newest_whole(tmp_path / "checkpoints", "a", LAYOUT) is None


def test_the_newest_is_found_and_two_are_kept(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        write(tmp_path, step)
    assert newest_whole(tmp_path, "a", LAYOUT) == (30, tmp_path / "step-00000030")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000020", "step-00000030"]


def test_one_that_was_not_published_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, 10)
    partial_folder(tmp_path, 20).mkdir()
    assert newest_whole(tmp_path, "a", LAYOUT) == (10, tmp_path / "step-00000010")


@pytest.mark.parametrize("damage", ["changed", "missing", "no manifest", "cut manifest"])
def test_a_damaged_one_is_refused_and_the_one_before_is_used(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 10)
    newest = write(tmp_path, 20)
    if damage == "changed":
        (newest / "engine" / "weights").write_bytes(b"x" * 100)
    elif damage == "missing":
        (newest / "engine" / "weights").unlink()
    elif damage == "no manifest":
        (newest / "manifest.json").unlink()
    else:
        (newest / "manifest.json").write_text('{"step"')
    with caplog.at_level(logging.WARNING):
        assert newest_whole(tmp_path, "a", LAYOUT) == (10, tmp_path / "step-00000010")
    assert "is refused" in caplog.text


def test_a_checkpoint_of_another_trial_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 10, identity="b")
    assert newest_whole(tmp_path, "a", LAYOUT) is None


def test_writing_a_step_again_replaces_it(tmp_path: Path) -> None:
    write(tmp_path, 10)
    write(tmp_path, 10)
    assert newest_whole(tmp_path, "a", LAYOUT) == (10, tmp_path / "step-00000010")


@pytest.mark.parametrize(
    ("asked", "was", "now"),
    [
        ({"trial.workers": 1, "trial.zero_stage": 1}, "trial.workers=2", "trial.workers=1"),
        ({"trial.workers": 2, "trial.zero_stage": 3}, "trial.zero_stage=1", "trial.zero_stage=3"),
        (
            {"trial.workers": 4, "trial.zero_stage": 0},
            "trial.workers=2, trial.zero_stage=1",
            "trial.workers=4, trial.zero_stage=0",
        ),
    ],
)
def test_another_layout_is_refused_with_step_and_both_settings(
    asked: dict[str, int], was: str, now: str, tmp_path: Path
) -> None:
    write(tmp_path, 10)
    sentence = f"step 10 in .* was written with {was}, and only that can go on from it, not {now}; write {was}$"
    with pytest.raises(StorageError, match=sentence):
        newest_whole(tmp_path, "a", asked)
    with pytest.raises(StorageError, match=sentence):
        check_newest_layout(tmp_path, "a", asked)


def test_the_check_passes_where_nothing_of_this_trial_lies_or_the_layout_is_the_same(tmp_path: Path) -> None:
    other = {"trial.workers": 1, "trial.zero_stage": 1}
    check_newest_layout(tmp_path / "checkpoints", "a", other)
    write(tmp_path, 10, identity="b")
    check_newest_layout(tmp_path, "a", other)
    write(tmp_path, 20)
    check_newest_layout(tmp_path, "a", LAYOUT)


def test_the_layout_of_a_damaged_one_does_not_matter(tmp_path: Path) -> None:
    (write(tmp_path, 10) / "loop.json").unlink()
    assert newest_whole(tmp_path, "a", {"trial.workers": 1, "trial.zero_stage": 1}) is None
