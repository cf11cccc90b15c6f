import json
import os
from pathlib import Path

import pytest

from storage import files


def test_write_text_makes_folders_and_replaces_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b.txt"
    files.write_text(target, "old")
    files.write_text(target, "nouveau \N{LATIN SMALL LETTER E WITH ACUTE}")
    assert target.read_bytes() == b"nouveau \xc3\xa9"
    assert os.listdir(target.parent) == ["b.txt"]


def test_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.bin"
    files.write_bytes(target, b"old")

    def full_disk(handle: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space left"):
        files.write_bytes(target, b"new")
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_write_json_round_trips(tmp_path: Path) -> None:
    value = {"b": [1, 2.5, None], "a": "text"}
    files.write_json(tmp_path / "x.json", value)
    assert json.loads((tmp_path / "x.json").read_text()) == value


def test_write_json_refuses_nan_and_keeps_the_old_file(tmp_path: Path) -> None:
    files.write_json(tmp_path / "x.json", 1)
    with pytest.raises(ValueError, match="JSON compliant"):
        files.write_json(tmp_path / "x.json", float("nan"))
    assert (tmp_path / "x.json").read_text() == "1\n"


def test_folder_is_writable_for_a_folder_that_is_yet_to_be_made(tmp_path: Path) -> None:
    assert files.folder_is_writable(tmp_path / "not" / "yet")
    assert os.listdir(tmp_path) == []


def test_folder_is_writable_refuses_a_file_and_a_place_that_takes_no_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not files.folder_is_writable(tmp_path / "file")
    assert not files.folder_is_writable(tmp_path / "file" / "below")
    assert not files.folder_is_writable("/proc/1")
