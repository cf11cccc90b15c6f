"""What the report is made of: finished and failed trials, and which of them are compared with which.

A row is what differs in the seed only: one group and one label. A group holds the trials that may be compared, those of
one model for example; every row is compared with the `base` and the `zero` of its own group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from storage.curves import Curve
from storage.measurements import Measurements

RowKey = tuple[str, str]
"""(group, label)."""


@dataclass(frozen=True)
class ArmResult:
    """One finished trial. Trials that differ in the seed only share group and label."""

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
    group: str = ""
    """Trials that may be compared with one another: of one model, or of one stage."""
    measurements: Mapping[str, Measurements] = field(default_factory=dict)
    """What the diagnostics measured, by name."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The trial's settings, `{"arm": ..., group: {name: value}}`."""

    @property
    def key(self) -> RowKey:
        """The row it belongs to."""
        return self.group, self.label

    @property
    def short(self) -> str:
        """The label within its group."""
        return short_label(self.group, self.label)


@dataclass(frozen=True)
class FailedTrial:
    """One trial that did not finish."""

    label: str
    seed: int
    reason: str
    group: str = ""


def short_label(group: str, label: str) -> str:
    """The label without the group that it begins with: for where the group is said anyway."""
    return label.removeprefix(f"{group} ") if group else label


Rows = dict[RowKey, list[ArmResult]]


def by_row(results: Sequence[ArmResult]) -> Rows:
    """Results of one row together, sorted by seed; rows in the order of their first appearance, group by group."""
    rows: Rows = {}
    for group in groups_of(results):
        for result in results:
            if result.group == group:
                rows.setdefault(result.key, []).append(result)
    return {key: sorted(row, key=lambda result: result.seed) for key, row in rows.items()}


def groups_of(results: Sequence[ArmResult]) -> list[str]:
    """The groups in the order of their first appearance."""
    return list(dict.fromkeys(result.group for result in results))


def reference_of(row: Sequence[ArmResult], rows: Rows, arm: str) -> list[ArmResult] | None:
    """The row of this arm that `row` is compared with, in its own group; None where there is none or it is `row`.

    Where the arm carries swept values (a control for every number of steps) it is the one with the same value.
    """
    candidates = [other for other in rows.values() if other[0].arm == arm and other[0].group == row[0].group]
    found = next((other for other in candidates if other[0].value == row[0].value), None)
    if found is None and candidates and candidates[0][0].value is None:
        found = candidates[0]
    return None if found is None or found[0].key == row[0].key else found


def pairs(row: Sequence[ArmResult], reference: Sequence[ArmResult]) -> list[tuple[Curve, Curve]]:
    """Report curves of both sides, paired by seed; the base is not trained, so its one curve meets every seed."""
    if len(reference) == 1 and reference[0].arm == "base":
        return [(result.report, reference[0].report) for result in row]
    if len(row) == 1 and row[0].arm == "base":
        return [(row[0].report, other.report) for other in reference]
    by_seed = {other.seed: other.report for other in reference}
    return [(result.report, by_seed[result.seed]) for result in row if result.seed in by_seed]
