"""The summary of a sweep: one row per arm, failed trials below, as Markdown, CSV or JSON (`terminal_table` prints it).

Perplexities are of the `report` split; over seeds they are exp of the mean log perplexity. Differences are in per
cent of perplexity at 4K-8K, with 95 % intervals: over seeds where an arm has several, otherwise over documents. The
best swept value is the one with the lowest PPL@8K on the `select` split, of those without a failed seed; its row shows
the `report` split as any other.
"""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.curves import RANGE_8K, Curve
from storage.files import write_text
from sweeps.statistics import Interval, length_generalization, paired_difference, pool, seed_difference

Row = dict[str, Any]
MISSING = "-"
BEST_NOTE = (
    "* lowest PPL@8K on the select split of the swept values without a failed seed; all figures are of the report split"
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


@dataclass(frozen=True)
class ArmResult:
    """One finished trial. Trials that differ in the seed only share their label."""

    label: str
    """What the row and the line in the figure are called, for example `random_noise 0.1`."""
    arm: str
    seed: int
    value: float | None
    """The swept value (sigma), `None` for arms that are not swept."""
    select: Curve | None
    report: Curve
    apart: Curve | None
    seconds: float
    """Wall time of the trial, training and evaluation together."""


@dataclass(frozen=True)
class FailedTrial:
    """One trial that did not finish."""

    label: str
    seed: int
    reason: str


def by_label(results: Sequence[ArmResult]) -> dict[str, list[ArmResult]]:
    """Results of one label together, sorted by seed; labels in the order of their first appearance."""
    groups: dict[str, list[ArmResult]] = {}
    for result in results:
        groups.setdefault(result.label, []).append(result)
    return {label: sorted(group, key=lambda result: result.seed) for label, group in groups.items()}


def best_label(results: Sequence[ArmResult]) -> str | None:
    """Label of the swept value with the lowest PPL@8K on the select split (mean of logs over seeds).

    Values that lack a seed which another value has do not compete: the mean of other seeds is no fair rival.
    """
    scores = {}
    swept = by_label([result for result in results if result.value is not None])
    seeds = {result.seed for group in swept.values() for result in group}
    for label, group in swept.items():
        tables = [result.select.table() for result in group if result.select is not None and len(group) == len(seeds)]
        score = _mean_of_logs([table["ppl_8k"] for table in tables])
        if score is not None and math.isfinite(score):
            scores[label] = score
    return min(scores, key=scores.__getitem__) if scores else None


def summary_rows(results: Sequence[ArmResult]) -> list[Row]:
    """One row of plain values per arm.

    Keys: `arm` (label), `seeds`, `ppl_train`, `ppl_1k`, `ppl_8k`, `ratio`, `bits_per_byte`, `vs_base` and `vs_zero`
    (per cent at PPL@8K) each with `_low`, `_high`, `_over` (`seeds` or `documents`), `length_generalization`
    (`holds`, `fails`, `undecided`), `apart_ppl_8k`, `best` and `seconds` (mean per trial). `None`: not measured.
    """
    groups = by_label(results)
    best = best_label(results)
    return [_row(label, group, groups, best == label) for label, group in groups.items()]


def _row(label: str, group: list[ArmResult], groups: Mapping[str, list[ArmResult]], best: bool) -> Row:
    tables = [result.report.table() for result in group]
    row: Row = {"arm": label, "seeds": len(group)}
    row |= {key: _mean_of_logs([table[key] for table in tables]) for key in _LEVELS if key != "bits_per_byte"}
    row["bits_per_byte"] = _mean([table["bits_per_byte"] for table in tables])
    for name in ("base", "zero"):
        reference = next((other for other in groups.values() if other[0].arm == name), None)
        row |= _difference(f"vs_{name}", group, reference)
    row["length_generalization"] = _verdict(group)
    row["apart_ppl_8k"] = _mean_of_logs(
        [result.apart.table()["ppl_8k"] for result in group if result.apart is not None]
    )
    return row | {"best": best, "seconds": _mean([result.seconds for result in group])}


def _difference(name: str, group: list[ArmResult], reference: list[ArmResult] | None) -> Row:
    keys = (name, f"{name}_low", f"{name}_high", f"{name}_over")
    pairs = _pairs(group, reference) if reference is not None and reference is not group else []
    if not pairs or RANGE_8K[1] > min(curve.length for pair in pairs for curve in pair):
        return dict.fromkeys(keys)
    over = "seeds" if len(pairs) > 1 else "documents"
    interval = (
        seed_difference([a for a, _ in pairs], [b for _, b in pairs], *RANGE_8K)
        if len(pairs) > 1
        else paired_difference(*pairs[0], *RANGE_8K)
    )
    return dict(zip(keys, (interval.estimate, interval.low, interval.high, over), strict=True))


def _pairs(group: list[ArmResult], reference: list[ArmResult]) -> list[tuple[Curve, Curve]]:
    """Report curves of both sides, paired by seed; the base is not trained, so its one curve meets every seed."""
    if len(reference) == 1 and reference[0].arm == "base":
        return [(result.report, reference[0].report) for result in group]
    if len(group) == 1 and group[0].arm == "base":
        return [(group[0].report, other.report) for other in reference]
    by_seed = {other.seed: other.report for other in reference}
    return [(result.report, by_seed[result.seed]) for result in group if result.seed in by_seed]


def _verdict(group: list[ArmResult]) -> str:
    select = [result.select for result in group if result.select is not None]
    return length_generalization(
        pool([result.report for result in group]), pool(select) if len(select) == len(group) else None
    )


def _mean_of_logs(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if all(map(math.isfinite, known)) else math.inf


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def cells(row: Row) -> dict[str, str]:
    """The row as text by column heading, as the tables for readers show it."""
    text = {"arm": f"{row['arm']} *" if row["best"] else str(row["arm"]), "seeds": str(row["seeds"])}
    digits = {"bits_per_byte": 3, "ratio": 3}
    text |= {heading: _number(row[key], digits.get(key, 2)) for key, heading in _LEVELS.items()}
    for name in ("base", "zero"):
        ends = (row[f"vs_{name}"], row[f"vs_{name}_low"], row[f"vs_{name}_high"])
        text[f"vs {name}, %"] = interval_text(Interval(*ends)) if ends[0] is not None else MISSING
    return text | {"length gen.": str(row["length_generalization"])}


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
    return best + ([SHORT_NOTE] if rows and all(row["ppl_8k"] is None for row in rows) else [])


def to_markdown(rows: Sequence[Row], failed: Sequence[FailedTrial] = ()) -> str:
    """The summary as a Markdown table, failed trials as a list below it."""
    lines: list[str] = []
    if rows:
        headings = list(cells(rows[0]))
        lines = ["| " + " | ".join(headings) + " |", "| --- |" + " ---: |" * (len(headings) - 1)]
        lines += ["| " + " | ".join(cells(row).values()) + " |" for row in rows]
    for note in notes(rows):
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
    lost = [{"arm": trial.label, "seed": trial.seed, "reason": trial.reason} for trial in failed]
    return {"rows": plain, "failed": lost}


def to_json(rows: Sequence[Row], failed: Sequence[FailedTrial] = ()) -> str:
    """`as_plain` as JSON text."""
    return json.dumps(as_plain(rows, failed), indent=2, allow_nan=False) + "\n"


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_tables(folder: Path, rows: Sequence[Row], failed: Sequence[FailedTrial] = ()) -> list[Path]:
    """Write `summary.md`, `summary.csv` and `summary.json` into the folder; return their paths."""
    texts = {"md": to_markdown(rows, failed), "csv": to_csv(rows), "json": to_json(rows, failed)}
    paths = [folder / f"summary.{ending}" for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    return paths
