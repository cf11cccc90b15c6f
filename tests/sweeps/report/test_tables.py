import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from sweeps.length_generalization import horizon_interval, length_generalization
from sweeps.report.results import ArmResult, FailedTrial
from sweeps.report.tables import (
    BEST_NOTE,
    ONE_SEED,
    ONE_SEED_NOTE,
    SHORT_NOTE,
    best_rows,
    cells,
    summary_rows,
    to_csv,
    to_json,
    to_markdown,
    write_tables,
)
from sweeps.statistics import paired_difference, seed_difference
from tests.curve_makers import make_curve


def result(
    label: str,
    mean: float,
    *,
    select: float | None = None,
    seed: int = 0,
    value: float | None = None,
    length: int = 16384,
    rise: float = 0.0,
) -> ArmResult:
    chosen = make_curve(mean if select is None else select, length=length, rise=rise)
    report = make_curve(mean, rise=rise, noise=0.02, seed=seed + len(label), length=length)
    return ArmResult(label, label.split()[0], seed, value, chosen, report, None, 30.0)


def sweep() -> list[ArmResult]:
    return [
        result("base", 1.2, rise=0.15),
        result("zero", 1.2, rise=0.15),
        result("random_noise 0.1", 1.25, value=0.1, rise=0.05),
        result("random_noise 1", 1.9, value=1.0),
        result("state_passing", 1.2),
    ]


def test_a_row_holds_the_curve_table_and_both_differences() -> None:
    results = sweep()
    rows = summary_rows(results)
    assert [row["arm"] for row in rows] == [found.label for found in results]
    base, zero, noise = results[:3]
    row = rows[2]
    assert {key: row[key] for key in noise.report.table()} == pytest.approx(noise.report.table())
    for name, other in (("base", base), ("zero", zero)):
        expected = paired_difference(noise.report, other.report, 4096, 8192)
        assert (row[f"vs_{name}"], row[f"vs_{name}_low"], row[f"vs_{name}_high"], row[f"vs_{name}_over"]) == (
            *(expected.estimate, expected.low, expected.high),
            "documents",
        )


def test_an_arm_has_no_difference_to_itself() -> None:
    base, zero = summary_rows(sweep())[:2]
    assert base["vs_base"] is None and base["vs_zero"] is not None
    assert zero["vs_zero"] is None and zero["vs_base"] is not None


def test_the_best_value_is_chosen_on_select_and_shown_on_report() -> None:
    results = [
        result("random_noise 0.1", 1.0, select=1.5, value=0.1),
        result("random_noise 0.3", 1.2, select=1.3, value=0.3),
        result("state_passing", 0.5, select=0.5),
    ]
    assert best_rows(results) == {("", "random_noise 0.3")}
    rows = summary_rows(results)
    assert [row["best"] for row in rows] == [False, True, False]
    assert rows[1]["ppl_8k"] == results[1].report.table()["ppl_8k"]
    assert cells(rows[1])["arm"] == "random_noise 0.3 *"


def test_a_value_with_a_failed_seed_does_not_win() -> None:
    whole = [result("random_noise 0.1", 1.2, seed=seed, value=0.1) for seed in range(3)]
    lucky = [result("random_noise 0.3", 1.0, seed=seed, value=0.3) for seed in range(2)]
    assert best_rows([*whole, *lucky]) == {("", "random_noise 0.1")}
    assert BEST_NOTE in to_markdown(summary_rows([*whole, *lucky])).replace("\\", "")


def test_without_a_swept_value_nothing_is_marked() -> None:
    assert best_rows([result("base", 1.0), result("zero", 1.0)]) == set()


def test_seeds_are_averaged_in_logs_and_compared_by_seed() -> None:
    zero = [result("zero", 1.2, seed=seed) for seed in range(3)]
    passing = [result("state_passing", mean, seed=seed) for seed, mean in enumerate((1.0, 1.1, 1.2))]
    base = result("base", 1.3)
    row = summary_rows([base, *zero, *passing])[2]
    logs = [math.log(found.report.range_perplexity(4096, 8192)) for found in passing]
    assert row["seeds"] == 3
    assert row["ppl_8k"] == pytest.approx(math.exp(sum(logs) / 3), rel=1e-12)
    versus_zero = seed_difference([r.report for r in passing], [r.report for r in zero], 4096, 8192)
    assert (row["vs_zero"], row["vs_zero_low"], row["vs_zero_over"]) == (versus_zero.estimate, versus_zero.low, "seeds")
    versus_base = seed_difference([r.report for r in passing], [base.report] * 3, 4096, 8192)
    assert (row["vs_base"], row["vs_base_high"]) == (versus_base.estimate, versus_base.high)


def test_a_seed_that_failed_on_one_side_leaves_the_pair_out() -> None:
    zero = [result("zero", 1.2, seed=seed) for seed in (0, 2)]
    passing = [result("state_passing", 1.0, seed=seed) for seed in (0, 1, 2)]
    row = summary_rows([*zero, *passing])[1]
    paired = seed_difference([passing[0].report, passing[2].report], [found.report for found in zero], 4096, 8192)
    assert (row["vs_zero"], row["vs_zero_low"]) == (paired.estimate, paired.low)


def test_short_windows_leave_far_columns_empty() -> None:
    rows = summary_rows([result("base", 1.2, length=2048), result("zero", 1.2, length=2048)])
    assert rows[1]["ppl_1k"] is not None
    assert rows[1]["ppl_8k"] is rows[1]["ratio"] is rows[1]["vs_base"] is None
    assert cells(rows[1])["vs base, %"] == cells(rows[1])["PPL@8K"] == "-"
    assert SHORT_NOTE in to_markdown(rows) and SHORT_NOTE not in to_markdown(summary_rows(sweep()))


def test_failed_trials_are_listed_with_their_reason_on_one_line() -> None:
    text = to_markdown(summary_rows(sweep()), [FailedTrial("zero", 1, "worker died\nexit code 137")])
    assert text.endswith("Failed trials:\n\n- zero (seed 1): worker died exit code 137\n")


def test_markdown_rows_have_as_many_cells_as_headings() -> None:
    lines = [line for line in to_markdown(summary_rows(sweep())).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 5
    assert {line.count("|") for line in lines} == {lines[0].count("|")}


def test_csv_keeps_every_digit() -> None:
    rows = summary_rows(sweep())
    read = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert [float(row["ppl_8k"]) for row in read] == [row["ppl_8k"] for row in rows]
    assert read[0]["vs_base"] == ""


def test_json_has_no_number_that_json_lacks() -> None:
    rows = summary_rows(sweep())
    rows[0]["ppl_8k"], rows[1]["ppl_8k"] = math.inf, math.nan
    read = json.loads(to_json(rows, [FailedTrial("zero", 1, "out of memory")]))
    assert [row["ppl_8k"] for row in read["rows"][:2]] == [None, None]
    assert read["rows"][2]["ppl_8k"] == rows[2]["ppl_8k"]
    assert read["failed"] == [{"group": "", "arm": "zero", "seed": 1, "reason": "out of memory"}]


def test_a_sweep_in_which_everything_failed_still_has_files(tmp_path: Path) -> None:
    paths = write_tables(tmp_path, [], [FailedTrial("zero", 0, "out of memory")])
    assert [path.name for path in paths] == ["summary.md", "summary.csv", "summary.json"]
    assert "zero (seed 0): out of memory" in paths[0].read_text()


def test_a_diverged_arm_is_named_as_such() -> None:
    lost = result("random_noise 1", 1.0, value=1.0)
    lost.report.nll_sum[0, -5:] = math.inf
    row = summary_rows([result("base", 1.2), lost])[1]
    assert cells(row)["PPL@8K"] == "not finite"


def test_one_seed_gives_no_verdict_on_an_arm_that_trains() -> None:
    results = [result("base", 1.2, rise=0.15), result("zero", 1.2, rise=0.15)]
    rows = summary_rows(results)
    assert rows[0]["length_generalization"] == "fails", "the base is this checkpoint, whatever the seed"
    assert rows[1]["length_generalization"] == cells(rows[1])["length gen."] == ONE_SEED
    assert ONE_SEED_NOTE in to_markdown(rows)
    several = summary_rows([results[0], *(result("zero", 1.2, rise=0.15, seed=seed) for seed in range(3))])
    assert several[1]["length_generalization"] == "fails"
    assert ONE_SEED_NOTE not in to_markdown(several)


def test_the_horizon_is_that_of_the_curve_with_t_star_of_select() -> None:
    found = result("zero", 1.2, rise=0.15)
    row = summary_rows([found])[0]
    expected = horizon_interval(found.report, found.select)
    assert (row["horizon"], row["horizon_low"], row["horizon_high"]) == (
        expected.estimate,
        expected.low,
        expected.high,
    )
    assert cells(row)["horizon"] == f"{row['horizon']} [{row['horizon_low']}, {row['horizon_high']}]"
    assert length_generalization(found.report, found.select) == "fails" and row["horizon"] < found.report.length


def test_rows_are_compared_within_their_group() -> None:
    def of_size(size: str, mean: float) -> list[ArmResult]:
        found = [result("base", mean), result("zero", mean + 0.1), result("state_passing", mean - 0.1)]
        return [replace(one, group=size, label=f"{size} {one.label}") for one in found]

    small, large = of_size("small", 1.4), of_size("large", 1.1)
    rows = {row["arm"]: row for row in summary_rows([*small, *large])}
    for results in (small, large):
        base, zero, passing = results
        for name, other in (("base", base), ("zero", zero)):
            expected = paired_difference(passing.report, other.report, 4096, 8192)
            assert rows[passing.label][f"vs_{name}"] == expected.estimate
    assert "| group | arm |" in to_markdown(list(rows.values()))
    assert "| small | base |" in to_markdown(list(rows.values()))


def test_the_control_of_a_swept_value_is_the_one_with_the_same_value() -> None:
    zero = {steps: result(f"zero {steps:g}", 1.2 + steps / 1000, value=steps) for steps in (10.0, 100.0)}
    passing = {steps: result(f"state_passing {steps:g}", 1.1, value=steps) for steps in (10.0, 100.0)}
    base = result("base", 1.3)
    rows = {row["arm"]: row for row in summary_rows([base, *zero.values(), *passing.values()])}
    for steps in zero:
        expected = paired_difference(passing[steps].report, zero[steps].report, 4096, 8192)
        assert rows[f"state_passing {steps:g}"]["vs_zero"] == expected.estimate
        assert rows[f"zero {steps:g}"]["vs_zero"] is None
        assert rows[f"zero {steps:g}"]["vs_base"] is not None
    assert rows["base"]["vs_zero"] is None, "no single control stands beside the base"


def test_each_arm_and_group_has_a_best_value_of_its_own() -> None:
    results = [
        replace(result(f"{arm} {value:g}", 1.0, select=select, value=value), group=group)
        for group in "ab"
        for arm, selects in (("random_noise", (1.5, 1.3)), ("tbtt", (1.2, 1.4)))
        for value, select in zip((0.1, 0.3), selects, strict=True)
    ]
    assert best_rows(results) == {(group, label) for group in "ab" for label in ("random_noise 0.3", "tbtt 0.1")}


def test_a_bar_in_a_name_does_not_break_the_table() -> None:
    text = to_markdown(summary_rows([result("zero a|b", 1.2)]))
    assert "zero a\\|b" in text
