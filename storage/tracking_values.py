"""What is written into a run, as plain values: parameters, training metrics, the curve. No MLflow import.

A `Point` is (key, value, step). Non-finite values never become points (a single infinity ruins a chart's axis);
they are counted instead, and the callers write the count as a tag.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from storage.curves import Curve
    from storage.measurements import Measurements

PARAMETER_LIMIT = 6000
TAG_LIMIT = 5000


class Point(NamedTuple):
    """One value of one metric at one step (optimiser step for `train/`, right bin edge in positions for curves)."""

    key: str
    value: float
    step: int


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as MLflow parameters: dotted names, text values; lists as JSON, `None` as `none`."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = shorten(_as_text(value), PARAMETER_LIMIT)
    return flat


def _as_text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return json.dumps(list(value), default=str)
    return str(value)


def shorten(text: str, limit: int) -> str:
    """The text, cut to `limit` characters with a visible ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def training_points(history: Iterable[Mapping[str, float | None]]) -> tuple[list[Point], int]:
    """(points with the prefix `train/` in the order of steps, number of non-finite values left out).

    Each entry of `history` has the key `step` (optimiser step) beside its metrics; `None` stands for a value that was
    not finite. Steps that occur twice (a resumed trial repeats some) count once, with the later entry.
    """
    by_step = {int(cast(float, entry["step"])): entry for entry in history}
    every = [
        Point(f"train/{name}", math.nan if value is None else float(value), step)
        for step, entry in sorted(by_step.items())
        for name, value in entry.items()
        if name != "step"
    ]
    points = finite(every)
    return points, len(every) - len(points)


def finite(points: Sequence[Point]) -> list[Point]:
    """The points whose value is neither NaN nor infinite."""
    return [point for point in points if math.isfinite(point.value)]


def curve_points(curve: "Curve", key: str) -> tuple[list[Point], int]:
    """(points of perplexity with step = right bin edge, number of bins left out because they are not finite)."""
    every = [
        Point(key, float(value), int(edge)) for edge, value in zip(curve.edges[1:], curve.perplexity(), strict=True)
    ]
    points = finite(every)
    return points, len(every) - len(points)


def summary_points(curve: "Curve", key: str) -> list[Point]:
    """The curve's table (`ppl_train`, `ppl_1k`, ...) as single values, under the same prefix as `key`."""
    prefix = key[: key.rfind("/") + 1]
    values = {name: value for name, value in curve.table().items() if value is not None}
    return finite([Point(f"{prefix}{name}", float(value), 0) for name, value in values.items()])


def measurement_points(measurements: "Measurements") -> tuple[list[Point], int]:
    """(points of a diagnostic, number of values left out because they are not finite).

    Where its positions increase, each column of floats is a curve with step = position; the summary has step 0.
    """
    columns = {
        name: values
        for name, values in measurements.columns.items()
        if measurements.is_by_position and values.dtype.kind == "f"
    }
    every = [
        Point(f"{measurements.name}/{name}", float(value), int(position))
        for name, values in columns.items()
        for position, value in zip(measurements.position, values, strict=True)
    ]
    every += [Point(f"{measurements.name}/{key}", float(value), 0) for key, value in measurements.summary.items()]
    points = finite(every)
    return points, len(every) - len(points)
