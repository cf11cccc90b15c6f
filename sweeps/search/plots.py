"""History, importance and slices of a study as PNG files, drawn by Optuna with matplotlib."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import FrozenTrial, TrialState

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NEEDED = 2
"""Complete trials without which there is nothing to compare."""
_INCHES = (8.0, 5.0)
_INCHES_PER_SLICE = 3.2


def write_plots(folder: Path, study: optuna.Study) -> list[Path]:
    """Write the plots that the study has enough trials for; their files."""
    import matplotlib

    # Optuna draws with pyplot: no window may open, and its style must not reach the figures of others.
    matplotlib.use("agg")
    from matplotlib import pyplot

    files = []
    for name, draw in _plots(study):
        with matplotlib.rc_context(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            figure = _figure(draw())
            figure.savefig(folder / f"search_{name}.png", dpi=120, bbox_inches="tight")
            pyplot.close(figure)
        files.append(folder / f"search_{name}.png")
    return files


def _plots(study: optuna.Study) -> Iterator[tuple[str, Callable[[], Any]]]:
    from optuna.visualization import matplotlib as drawn

    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) < _NEEDED:
        return
    names = study.metric_names or ["objective"]
    several = len(names) > 1
    shared = set.intersection(*(set(one.params) for one in complete))
    varied = {name for name in shared if len({one.params[name] for one in complete}) > 1}
    for index, name in enumerate(names):
        suffix = f"_{name}" if several else ""
        # Optuna wants a target for one of several objectives, and none for the only one where it draws pruned trials.
        target: dict[str, Any] = {"target": _value(index), "target_name": name} if several else {"target_name": name}
        yield f"history{suffix}", partial(drawn.plot_optimization_history, study, **target)
        yield f"slice{suffix}", partial(drawn.plot_slice, study, **target)
        if varied:
            yield f"importance{suffix}", partial(drawn.plot_param_importances, study, **target)
    if several:
        yield "pareto_front", partial(drawn.plot_pareto_front, study, target_names=names)
    elif any(one.intermediate_values for one in study.get_trials(deepcopy=False)):
        yield "intermediate", partial(drawn.plot_intermediate_values, study)


def _value(index: int) -> Callable[[FrozenTrial], float]:
    return lambda trial: float(trial.values[index])


def _figure(axes: Any) -> "Figure":
    """The figure of what Optuna returns: one axes or an array of them, side by side."""
    panels = getattr(axes, "size", 1) if hasattr(axes, "flat") else 1
    first = next(axes.flat) if hasattr(axes, "flat") else axes
    figure: Figure = first.figure
    figure.set_size_inches(max(_INCHES[0], _INCHES_PER_SLICE * panels), _INCHES[1])
    return figure
