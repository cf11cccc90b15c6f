"""The trials of a study as a table: number, state, objective, settings, identity; and which of them is the best.

The values are those of the select split, on which the choice is made. What the best trial is worth is shown by the
sweep's own table and figures, on the report split.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from storage.files import write_text
from sweeps.folder_files import NOT_FINISHED
from sweeps.planned import PlannedTrial
from sweeps.search.ledger import Ledger
from sweeps.search.outcome import REASON, SAME_AS

NAME = "search_trials"
_SHOWN = 5
"""Best trials in the terminal."""


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One trial of the study."""

    number: int
    state: str
    """COMPLETE, PRUNED (stopped early) or FAIL."""
    values: tuple[float, ...]
    """Of the objective; of a pruned trial the last one it reported; empty for a failed one."""
    step: int | None
    """Steps it had made when it was stopped early."""
    settings: dict[str, Any]
    """The arm, and what else was suggested."""
    identity: str
    reason: str
    """Why it failed."""
    same_as: str
    """The trial whose result it has, because its settings had been tried."""
    best: bool

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "values": list(self.values)}

    @property
    def note(self) -> str:
        """Reason, twin and step in a few words."""
        words = [f"stopped at step {self.step}"] if self.step is not None else []
        words += [f"as {self.same_as}"] if self.same_as else []
        words += [self.reason] if self.reason else []
        return "; ".join(words)


def trial_rows(ledger: Ledger) -> list[TrialRow]:
    """All trials that the search suggested, in their order."""
    trials = ledger.study.get_trials(deepcopy=False)
    best = best_numbers(ledger)
    return [
        TrialRow(
            number=number,
            state=trials[number].state.name,
            values=tuple(trials[number].values or ()),
            step=trials[number].last_step if trials[number].state == TrialState.PRUNED else None,
            settings=ledger.suggestions[number],
            identity=planned.identity,
            reason=trials[number].user_attrs.get(REASON, NOT_FINISHED)
            if trials[number].state == TrialState.FAIL
            else "",
            same_as=trials[number].user_attrs.get(SAME_AS, ""),
            best=number in best,
        )
        for number, planned in sorted(ledger.planned.items())
    ]


def best_numbers(ledger: Ledger) -> list[int]:
    """The best complete trial, the first of equals; with two objectives the Pareto front."""
    study = ledger.study
    if len(study.directions) > 1:
        return sorted(one.number for one in study.best_trials if one.number in ledger.planned)
    complete = [
        (one.values[0], one.number)
        for one in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if one.number in ledger.planned
    ]
    highest = study.direction.name == "MAXIMIZE"
    return [min(complete, key=lambda pair: (-pair[0] if highest else pair[0], pair[1]))[1]] if complete else []


def best_trials(ledger: Ledger) -> list[PlannedTrial]:
    """The best trials that ran themselves or have a twin that did: those that the report shows, each once."""
    runners = {ledger.runner[ledger.planned[number].identity]: None for number in best_numbers(ledger)}
    return [ledger.planned[number] for number in runners if ledger.folder.result(ledger.planned[number]) is not None]


def write_trial_table(folder: Path, names: Sequence[str], rows: Sequence[TrialRow]) -> list[Path]:
    """Write the table as Markdown and CSV; `names` are those of the objective's values."""
    settings = list(dict.fromkeys(name for row in rows for name in row.settings))
    head = ["number", "state", *names, *settings, "identity", "note"]
    body = [
        [
            f"{row.number}{' *' if row.best else ''}",
            row.state,
            *(f"{row.values[index]:.5g}" if row.values else "-" for index in range(len(names))),
            *(str(row.settings.get(name, "-")) for name in settings),
            row.identity[:8],
            row.note,
        ]
        for row in rows
    ]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *map(_escaped, body))]
    note = "\\* the best on the select split; the report split of the same trial is in the sweep's table"
    markdown, table = folder / f"{NAME}.md", folder / f"{NAME}.csv"
    write_text(markdown, "\n".join([*lines, "", note, ""]))
    write_text(table, _as_csv(names, settings, rows))
    return [markdown, table]


def _escaped(cells: list[str]) -> list[str]:
    return [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]


def _as_csv(names: Sequence[str], settings: Sequence[str], rows: Sequence[TrialRow]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["number", "state", *names, "step", *settings, "identity", "same_as", "reason", "best"])
    for row in rows:
        values = [repr(value) for value in row.values] or [""] * len(names)
        chosen = [row.settings.get(name, "") for name in settings]
        step = "" if row.step is None else row.step
        writer.writerow(
            [row.number, row.state, *values, step, *chosen, row.identity, row.same_as, row.reason, int(row.best)]
        )
    return text.getvalue()


def summary_lines(ledger: Ledger, rows: Sequence[TrialRow]) -> list[str]:
    """For the terminal: how many trials ended how, and the best with what they chose."""
    states = [row.state for row in rows]
    counts = ", ".join(
        f"{states.count(state)} {word}"
        for state, word in (("COMPLETE", "complete"), ("PRUNED", "stopped early"), ("FAIL", "failed"))
    )
    lines = [f"search: {len(rows)} trials ({counts}); objective: {ledger.plan.objective.meaning}, select split"]
    names = ledger.plan.objective.names
    for row in [row for row in rows if row.best][:_SHOWN]:
        values = ", ".join(f"{name} {value:.5g}" for name, value in zip(names, row.values, strict=True))
        chosen = " ".join(f"{name}={value}" for name, value in row.settings.items())
        lines.append(f"best: trial {row.number}: {values}; {chosen}")
    return lines
