"""The chart an experiment opens with in the MLflow UI: perplexity against log position, all trials overlaid.

MLflow keeps a view that a user shares as an experiment tag `mlflow.sharedViewState.KEY` and opens it by
`?viewStateShareKey=KEY`. The sweep shares one such view, so that the first look needs no clicking: only trials
(the parent has no curve), none hidden (the UI shows ten runs by default), a logarithmic position axis, no smoothing.
It shows the sweep that was started or continued last.
"""

import json

VIEW_KEY = "perplexity"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW_KEY}"
_SECTION = "sweep-curves"
_FOLDED = ("select", "apart", "train", "excess_nll", "effective_remembrance", "state_statistics", "coverage")
"""Prefixes of metrics whose charts the UI would otherwise put above ours."""


def view_state(metric: str, sweep_id: str) -> str:
    """JSON of the shared view: one line chart of `metric` over the trials of one sweep."""
    state = {
        "searchFilter": f"tags.`sweep.role` = 'trial' AND tags.`sweep.id` = '{sweep_id}'",
        "orderByKey": "tags.`mlflow.runName`",  # any order but by start time: that one folds trials into the parent
        "orderByAsc": True,
        "runsHiddenMode": "SHOW_ALL",
        "hideEmptyCharts": True,
        "compareRunSections": [_section(_SECTION, "Perplexity by position"), *(_section(name) for name in _FOLDED)],
        "compareRunCharts": [_line_chart(metric)],
    }
    return json.dumps(state, separators=(",", ":"))


def _section(uuid: str, title: str | None = None) -> dict[str, object]:
    """An open section with a title of its own, or a folded one that the UI fills with the metrics of that prefix."""
    return {
        "uuid": uuid,
        "name": title or uuid,
        "display": title is not None,
        "isReordered": True,
        "columns": 1,
        "cardHeight": 480,
    }


def _line_chart(metric: str) -> dict[str, object]:
    return {
        "type": "LINE",
        "uuid": "sweep-ppl-by-position",
        "metricSectionId": _SECTION,
        "deleted": False,
        "isGenerated": False,
        "runsCountToCompare": 500,
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "xAxisKey": "step",
        "xAxisScaleType": "log",
        "scaleType": "log",
        "lineSmoothness": 0,
        "displayPoints": False,
        "range": {},
        "useGlobalXaxisKey": False,
        "useGlobalLineSmoothing": False,
    }


def view_filter(state: str) -> str:
    """The search of a shared view: which runs it shows."""
    return str(json.loads(state)["searchFilter"])


def view_path(experiment_id: str) -> str:
    """The path of the shared view below the address of an MLflow UI, beginning with `/#/`."""
    return f"/#/experiments/{experiment_id}/runs?viewStateShareKey={VIEW_KEY}&compareRunsMode=CHART"
