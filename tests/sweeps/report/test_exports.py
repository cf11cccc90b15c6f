import csv
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from sweeps.report.exports import write_exports
from sweeps.report.source import read_sweep
from tests.sweeps.report.makers import Made, make_folder

TRIALS = [Made("demo base", group="demo", diagnosed=True), Made("demo tbtt 0.5", group="demo", seed=2, value=0.5)]


def test_both_exports_of_the_curves_reproduce_perplexity(tmp_path: Path) -> None:
    results = read_sweep(make_folder(tmp_path / "sweep", TRIALS)).results
    text, table = write_exports(tmp_path, results)[:2]
    lines = list(csv.DictReader(text.open(newline="")))
    columns = pq.read_table(table).to_pydict()
    assert list(lines[0]) == list(columns)
    for line, ppl, total, count in zip(lines, columns["ppl"], columns["nll_sum"], columns["count"], strict=True):
        assert float(line["ppl"]) == ppl == pytest.approx(np.exp(total / count), rel=1e-12)
        assert (float(line["nll_sum"]), int(line["count"])) == (total, count)


def test_every_bin_of_every_split_is_a_line_of_its_trial(tmp_path: Path) -> None:
    results = read_sweep(make_folder(tmp_path / "sweep", TRIALS)).results
    columns = pq.read_table(write_exports(tmp_path, results)[1]).to_pandas()
    curve = results[1].report
    mine = columns[(columns["label"] == "demo tbtt 0.5") & (columns["split"] == "report")]
    assert mine["position_high"].tolist() == curve.edges[1:].tolist()
    assert mine["position_low"].tolist() == curve.edges[:-1].tolist()
    assert mine["ppl"].tolist() == curve.perplexity().tolist()
    assert set(zip(mine["group"], mine["arm"], mine["value"], mine["seed"], strict=True)) == {("demo", "tbtt", 0.5, 2)}
    assert len(columns) == 4 * len(mine)


def test_diagnostics_are_a_reading_per_line_heads_in_parquet_only(tmp_path: Path) -> None:
    results = read_sweep(make_folder(tmp_path / "sweep", TRIALS)).results
    text, table = write_exports(tmp_path, results)[2:]
    columns = pq.read_table(table).to_pandas()
    heads = columns[columns["diagnostic"] == "state_statistics_by_head"]
    found = heads[(heads["position"] == 64) & (heads["layer"] == 1) & (heads["head"] == 2)]
    assert found["reading"].tolist() == pytest.approx([1.1 * 2.2])
    lines = list(csv.DictReader(text.open(newline="")))
    assert {line["diagnostic"] for line in lines} == set(columns["diagnostic"]) - {"state_statistics_by_head"}
    coverage = [float(line["reading"]) for line in lines if line["measure"] == "distance"]
    assert coverage == results[0].measurements["coverage"].columns["distance"].tolist()


def test_without_diagnostics_there_are_the_curves_only(tmp_path: Path) -> None:
    results = read_sweep(make_folder(tmp_path / "sweep", TRIALS[1:])).results
    assert [path.name for path in write_exports(tmp_path, results)] == ["curves.csv", "curves.parquet"]
