"""The diagnostics beside a trial's curves, by name. Adding one: a module with a function `measure`, and a line here.

`measure(model, windows, config, context, trained)` is called on every worker of the trial, with the model whole, in
fp32, in evaluation mode and without gradients, and with `eval.length` as it is to be read. It shares the windows out
itself, see `workers.evaluations.sharing`, and returns the same tables on every worker. `trained` are states that
training started from or passed through, None where they were not kept. Imports no torch: the settings need the names.
"""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from models.interface import RecurrentLanguageModel
    from storage.measurements import Measurements
    from storage.windows import EvaluationWindow
    from workers.context import TrialContext
    from workers.evaluations.coverage import TrainedOn
    from workers.settings import TrialConfig

DIAGNOSTICS = {
    "excess_nll": "workers.evaluations.excess_nll:measure",
    "effective_remembrance": "workers.evaluations.effective_remembrance:measure",
    "state_statistics": "workers.evaluations.state_statistics:measure",
    "coverage": "workers.evaluations.coverage:measure",
}
"""Module and function of each."""


class LeftOut(Exception):
    """A diagnostic that cannot be had with these settings; the message says why. Raised before any window is read."""


class Diagnostic(Protocol):
    """What every diagnostic is; see the top of this module."""

    def __call__(
        self,
        model: "RecurrentLanguageModel",
        windows: "Sequence[EvaluationWindow]",
        config: "TrialConfig",
        context: "TrialContext",
        trained: "TrainedOn | None",
    ) -> "list[Measurements]":
        """The tables of these windows. Raises LeftOut on every worker alike."""
        ...


def run_diagnostics(
    model: "RecurrentLanguageModel",
    windows: "Sequence[EvaluationWindow]",
    config: "TrialConfig",
    context: "TrialContext",
    trained: "TrainedOn | None" = None,
) -> "tuple[list[Measurements], dict[str, str]]":
    """The tables of `eval.diagnostics` on the first `eval.diagnostic_windows` windows, and why some were left out."""
    chosen = windows[: config.eval.diagnostic_windows]
    tables: list[Measurements] = []
    left_out: dict[str, str] = {}
    if not chosen:
        return tables, dict.fromkeys(config.eval.diagnostics, "eval.diagnostic_windows is 0")
    config = _as_read(config)
    with as_measured(model):
        for number, name in enumerate(config.eval.diagnostics):
            if context.world == 1:
                at = {"at": number, "of": len(config.eval.diagnostics)}
                context.report({"phase": f"diagnosing {name}", **at, "history": []})
            try:
                tables += _function(name)(model, chosen, config, context, trained)
            except LeftOut as reason:
                left_out[name] = str(reason)
    return tables, left_out


def _as_read(config: "TrialConfig") -> "TrialConfig":
    """The same trial with windows of the length that the diagnostics read."""
    settings = config.eval
    length = min(settings.length, settings.diagnostic_length or settings.length)
    return replace(config, eval=replace(settings, length=length))


def _function(name: str) -> Diagnostic:
    module, _, function = DIAGNOSTICS[name].partition(":")
    found: Any = getattr(importlib.import_module(module), function)
    return found


@contextmanager
def as_measured(model: "RecurrentLanguageModel") -> Iterator[None]:
    """The model in fp32 or better and evaluation mode, without gradients; put back afterwards, which loses no bit."""
    import torch

    full, was_training = torch.promote_types(model.head_weight().dtype, torch.float32), model.training
    # One by one: in a model in bf16 some stay in fp32.
    dtypes = [(parameter, parameter.dtype) for parameter in model.parameters()]
    try:
        with torch.no_grad():
            model.to(full).eval()
            yield
    finally:
        for parameter, dtype in dtypes:
            parameter.data = parameter.data.to(dtype)
        model.train(was_training)
