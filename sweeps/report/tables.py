"""The summary of a sweep: one row per arm, failed trials below, as Markdown, CSV or JSON (`terminal_table` prints it).

Perplexities are of the `report` split; over seeds they are exp of the mean log perplexity. Differences are in per
cent of perplexity at 4K-8K, with 95 % intervals: over seeds where an arm has several, otherwise over documents. The
best swept value of an arm is the one with the lowest PPL@8K on the `select` split, of those without a failed seed; its
row shows the `report` split as any other. One seed gives no verdict on an arm that trains.
"""

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from storage.curves import RANGE_8K, Curve
from storage.files import write_text
from sweeps.length_generalization import horizon_interval, length_generalization, lowest_bin
from sweeps.report.results import ArmResult, FailedTrial, RowKey, Rows, by_row, pairs, reference_of, short_label
from sweeps.statistics import Interval, paired_difference, pool, seed_difference

Row = dict[str, Any]
MISSING = "-"
BEST_NOTE = (
    "* lowest PPL@8K on the select split of the arm's swept values without a failed seed; "
    "all figures are of the report split"
)
ONE_SEED = "one seed"
ONE_SEED_NOTE = "one seed, no verdict: another seed may fall out differently; --seeds 3 gives one"
HORIZON_NOTE = (
    "horizon: the position up to which perplexity past its lowest within the training length stays at or below it, "
    "with an interval over documents, wide where there are few: read it as a range"
)
SHORT_NOTE = (
    f"PPL@8K, ratio and differences are empty: they need evaluation windows of {RANGE_8K[1]} positions (eval.length)"
)
_LEVELS = {
    "ppl_train": "PPL@train",
    "ppl_1k": "PPL@1K",
    "ppl_8k": "PPL@8K",
    "ratio": "ratio",
    "bits_per_byte": "bits/byte",
}
_HORIZON = ("horizon", "horizon_low", "horizon_high")


def best_rows(results: Sequence[ArmResult]) -> set[RowKey]:
    """Of each arm that carries swept values, in each group, the row with the lowest PPL@8K on the select split.

    Means of logs over seeds. Values that lack a seed which another value has do not compete: the mean of other seeds is
    no fair rival.
    """
    families: dict[tuple[str, str], Rows] = {}
    for key, row in by_row([result for result in results if result.value is not None]).items():
        families.setdefault((row[0].group, row[0].arm), {})[key] = row
    return {best for family in families.values() if (best := _best_of(family)) is not None}


def _best_of(family: Rows) -> RowKey | None:
    seeds = {result.seed for row in family.values() for result in row}
    scores = {}
    for key, row in family.items():
        tables = [result.select.table() for result in row if result.select is not None and len(row) == len(seeds)]
        score = _mean_of_logs([table["ppl_8k"] for table in tables])
        if score is not None and math.isfinite(score):
            scores[key] = score
    return min(scores, key=scores.__getitem__) if len(family) > 1 and scores else None


def summary_rows(results: Sequence[ArmResult]) -> list[Row]:
    """One row of plain values per arm.

    Keys: `group`, `arm` (label), `value`, `seeds`, `ppl_train`, `ppl_1k`, `ppl_8k`, `ratio`, `bits_per_byte`, `vs_base`
    and `vs_zero` (per cent at PPL@8K) each with `_low`, `_high`, `_over` (`seeds` or `documents`),
    `length_generalization` (`holds`, `fails`, `undecided`, `one seed`), `horizon` with `_low` and `_high` (positions),
    `apart_ppl_8k`, `best` and `seconds` (mean per trial). `None`: not measured.
    """
    rows = by_row(results)
    best = best_rows(results)
    return [_row(row, rows, key in best) for key, row in rows.items()]


def _row(row: list[ArmResult], rows: Rows, best: bool) -> Row:
    tables = [result.report.table() for result in row]
    found: Row = {"group": row[0].group, "arm": row[0].label, "value": row[0].value, "seeds": len(row)}
    found |= {key: _mean_of_logs([table[key] for table in tables]) for key in _LEVELS if key != "bits_per_byte"}
    found["bits_per_byte"] = _mean([table["bits_per_byte"] for table in tables])
    for name in ("base", "zero"):
        found |= _difference(f"vs_{name}", row, reference_of(row, rows, name))
    found |= _verdict(row)
    found["apart_ppl_8k"] = _mean_of_logs([one.apart.table()["ppl_8k"] for one in row if one.apart is not None])
    return found | {"best": best, "seconds": _mean([result.seconds for result in row])}


def _difference(name: str, row: list[ArmResult], reference: list[ArmResult] | None) -> Row:
    keys = (name, f"{name}_low", f"{name}_high", f"{name}_over")
    paired = pairs(row, reference) if reference is not None else []
    if not paired or RANGE_8K[1] > min(curve.length for pair in paired for curve in pair):
        return dict.fromkeys(keys)
    over = "seeds" if len(paired) > 1 else "documents"
    interval = (
        seed_difference([a for a, _ in paired], [b for _, b in paired], *RANGE_8K)
        if len(paired) > 1
        else paired_difference(*paired[0], *RANGE_8K)
    )
    return dict(zip(keys, (interval.estimate, interval.low, interval.high, over), strict=True))


def _verdict(row: list[ArmResult]) -> Row:
    """Length generalisation and horizon of the pooled seeds; `one seed` where one training decides nothing."""
    selects = [result.select for result in row if result.select is not None]
    report, select = pool([result.report for result in row]), pool(selects) if len(selects) == len(row) else None
    is_one_training = len(row) == 1 and row[0].arm != "base"
    verdict = ONE_SEED if is_one_training else length_generalization(report, select)
    reach = horizon_interval(report, select) if _has_horizon(report, select) else None
    ends = (None,) * 3 if reach is None else (reach.estimate, reach.low, reach.high)
    return {"length_generalization": verdict, **dict(zip(_HORIZON, ends, strict=True))}


def _has_horizon(report: Curve, select: Curve | None) -> bool:
    """Whether there is a position past the training length to speak of."""
    return report.length > report.train_length and lowest_bin(select or report) + 1 < len(report.edges) - 1


def _mean_of_logs(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if all(map(math.isfinite, known)) else math.inf


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def cells(row: Row, *, with_group: bool = False) -> dict[str, str]:
    """The row as text by column heading, as the tables for readers show it."""
    text = {"group": str(row["group"]) or MISSING} if with_group else {}
    name = short_label(row["group"], row["arm"]) if with_group else row["arm"]
    text |= {"arm": f"{name} *" if row["best"] else str(name), "seeds": str(row["seeds"])}
    digits = {"bits_per_byte": 3, "ratio": 3}
    text |= {heading: _number(row[key], digits.get(key, 2)) for key, heading in _LEVELS.items()}
    for name in ("base", "zero"):
        ends = (row[f"vs_{name}"], row[f"vs_{name}_low"], row[f"vs_{name}_high"])
        text[f"vs {name}, %"] = interval_text(Interval(*ends)) if ends[0] is not None else MISSING
    reach = [row[key] for key in _HORIZON]
    return text | {"length gen.": str(row["length_generalization"]), "horizon": _reach_text(*reach)}


def all_cells(rows: Sequence[Row]) -> list[dict[str, str]]:
    """The rows as text, with a column for the group where there are several."""
    return [cells(row, with_group=len({one["group"] for one in rows}) > 1) for row in rows]


def _reach_text(position: int | None, low: int | None, high: int | None) -> str:
    if position is None:
        return MISSING
    return f"{position}" if low is None else f"{position} [{low}, {high}]"


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return MISSING
    return f"{value:.{digits}f}" if math.isfinite(value) else "not finite"


def interval_text(interval: Interval) -> str:
    """`-12.3 [-14.0, -10.1]`, without brackets where there is no interval."""
    if interval.low is None or interval.high is None:
        return f"{interval.estimate:+.1f}"
    return f"{interval.estimate:+.1f} [{interval.low:+.1f}, {interval.high:+.1f}]"


def notes(rows: Sequence[Row]) -> list[str]:
    """What a reader of the table must know beside it."""
    best = [BEST_NOTE] if any(row["best"] for row in rows) else []
    single = [ONE_SEED_NOTE] if any(row["length_generalization"] == ONE_SEED for row in rows) else []
    reach = [HORIZON_NOTE] if any(row["horizon"] is not None for row in rows) else []
    return best + single + reach + ([SHORT_NOTE] if rows and all(row["ppl_8k"] is None for row in rows) else [])


def seed_remarks(rows: Sequence[Row], seeds_of: str) -> list[str]:
    """What differs between seeds, where some row has several."""
    return [f"seeds differ in {seeds_of}"] if any(row["seeds"] > 1 for row in rows) else []


def to_markdown(rows: Sequence[Row], failed: Sequence[FailedTrial] = (), remarks: Sequence[str] = ()) -> str:
    """The summary as a Markdown table, notes and remarks below it, failed trials as a list at the end."""
    lines: list[str] = []
    if rows:
        shown = all_cells(rows)
        headings = list(shown[0])
        lines = ["| " + " | ".join(headings) + " |", "| --- |" + " ---: |" * (len(headings) - 1)]
        lines += ["| " + " | ".join(text.replace("|", "\\|") for text in row.values()) + " |" for row in shown]
    for note in [*notes(rows), *remarks]:
        lines += ["", note.replace("*", "\\*")]
    if failed:
        lines += ["", "Failed trials:", "", *(f"- {failed_line(trial)}" for trial in failed)]
    return "\n".join(lines) + "\n"


def failed_line(trial: FailedTrial) -> str:
    """`zero (seed 1): out of memory`, on one line."""
    return f"{trial.label} (seed {trial.seed}): {' '.join(trial.reason.split())}"


def to_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV with full digits; unmeasured values are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_plain(rows: Sequence[Row], failed: Sequence[FailedTrial] = ()) -> dict[str, Any]:
    """`{"rows": [...], "failed": [...]}` ready for JSON; unmeasured and non-finite values are None."""
    plain = [{key: _finite_or_none(value) for key, value in row.items()} for row in rows]
    lost = [{"group": trial.group, "arm": trial.label, "seed": trial.seed, "reason": trial.reason} for trial in failed]
    return {"rows": plain, "failed": lost}


def to_json(rows: Sequence[Row], failed: Sequence[FailedTrial] = ()) -> str:
    """`as_plain` as JSON text."""
    return json.dumps(as_plain(rows, failed), indent=2, allow_nan=False) + "\n"


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_tables(
    folder: Path, rows: Sequence[Row], failed: Sequence[FailedTrial] = (), remarks: Sequence[str] = ()
) -> list[Path]:
    """Write `summary.md`, `summary.csv` and `summary.json` into the folder; return their paths."""
    texts = {"md": to_markdown(rows, failed, remarks), "csv": to_csv(rows), "json": to_json(rows, failed)}
    paths = [folder / f"summary.{ending}" for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    return paths
