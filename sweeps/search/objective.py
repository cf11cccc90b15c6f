"""What a search looks for, measured on the select split: never on the report split, which shows what was found.

- `far`: mean negative log-likelihood (log perplexity, nats) past the training length, up to `eval.length`; lowest.
- `horizon`: the largest position up to which perplexity past t* stays at or below p*; highest.
- `far_and_near`: `far` against the same mean over the upper half of the training length; both lowest, a Pareto front.

Positions are those of the command's settings for every trial, whatever context a trial trained with: past the longest
context of the space is past every trial's training length.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from storage.curves import Curve, bin_edges
from sweeps.search.spaces import Space
from sweeps.settings import SettingError, Settings, nearest

OBJECTIVES = {"far": ("minimize",), "horizon": ("maximize",), "far_and_near": ("minimize", "minimize")}
"""Directions by name."""
_MEANINGS = {
    "far": "mean log perplexity (nats) over positions {far}",
    "horizon": "largest position up to which perplexity stays at or below its lowest within {context} positions",
    "far_and_near": "mean log perplexity (nats) over positions {far}, and over {near}",
}


@dataclass(frozen=True, kw_only=True)
class Objective:
    """One or two numbers of a curve."""

    name: str
    context: int
    """Training length of the command's settings."""
    far: tuple[int, int]
    """Positions (low, high] past the training length of every trial."""
    near: tuple[int, int]
    """Positions (low, high] within it."""

    @property
    def directions(self) -> tuple[str, ...]:
        """`minimize` or `maximize` for each value."""
        return OBJECTIVES[self.name]

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each value."""
        return ("far", "near") if self.name == "far_and_near" else (self.name,)

    @property
    def meaning(self) -> str:
        """In words, with its direction."""
        far, near = (f"{low + 1} to {high}" for low, high in (self.far, self.near))
        text = _MEANINGS[self.name].format(far=far, near=near, context=self.context)
        return f"{text}; {' and '.join('lowest' if one == 'minimize' else 'highest' for one in self.directions)}"

    def values(self, curve: Curve) -> tuple[float, ...]:
        """What the curve is worth; not finite where the model's likelihood is not."""
        if self.name == "horizon":
            return (_horizon(replace(curve, train_length=self.context)),)
        ranges = (self.far, self.near) if self.name == "far_and_near" else (self.far,)
        return tuple(_mean_nll(curve, low, high) for low, high in ranges)


def make_objective(name: str, settings: Settings, space: Space) -> Objective:
    """The objective of that name for the trials of a space. Raises SettingError."""
    if name not in OBJECTIVES:
        raise SettingError(f"there is no objective {name!r}; did you mean {nearest(name, list(OBJECTIVES))!r}?")
    context, length = settings.trial.context, settings.eval.length
    contexts = next((one.choices for one in space.parameters if one.setting == "trial.context"), (context,))
    longest = max(contexts)
    if longest >= length:
        raise SettingError(
            f"windows of {length} positions do not reach past the training length {longest}; raise eval.length"
        )
    objective = Objective(name=name, context=context, far=(longest, length), near=(context // 2, context))
    for one in contexts:
        lost = [edge for edge in (*objective.far, *objective.near) if edge not in bin_edges(length, one)]
        if lost:
            raise SettingError(
                f"a curve at training length {one} has no bin that ends at position {lost[0]}, so trials could not be "
                "compared; write powers of two as search.contexts and as trial.context"
            )
    return objective


def _mean_nll(curve: Curve, low: int, high: int) -> float:
    nll_W, count_W = curve.window_range_nll(low, high)
    return float(nll_W.sum() / count_W.sum())


def _horizon(curve: Curve) -> float:
    from sweeps.length_generalization import horizon

    # Without a finite perplexity within the training length there is no p*, but the position would still be a number.
    return float(horizon(curve)) if math.isfinite(_mean_nll(curve, 0, curve.train_length)) else math.nan


def pooled_curve(bins: list[list[float]], train_length: int) -> Curve:
    """The curve that a trial reports on its way: (right edge, NLL sum, tokens) of each bin, windows added up."""
    edges, nll_sum, count = (np.asarray(column) for column in zip(*bins, strict=True))
    return Curve(
        edges=np.asarray([0, *edges], np.int64),
        nll_sum=np.asarray(nll_sum, np.float64)[None],
        count=np.asarray(count, np.int64)[None],
        nonfinite=np.zeros(1, np.int64),
        document_ids=("select",),
        starts=np.zeros(1, np.int64),
        split="select",
        train_length=train_length,
    )


def as_text(values: Any) -> str:
    """Values of an objective for a table or a line."""
    return ", ".join(f"{value:.6g}" for value in values) if values else "-"
