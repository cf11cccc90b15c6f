"""Kills a process with SIGKILL inside a chosen call of the product's own code, at a chosen step and line.

Python imports a module of this name at start-up when its folder is on PYTHONPATH. With this folder in front of a
command's PYTHONPATH and `FAULTS` in its environment, the command, its Ray workers and its bank shards load this file;
without the variable it does nothing. The product knows nothing of it.
"""

import inspect
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

FAULTS = "INJECTED_FAULTS"
"""Environment variable: the faults as JSON, see `as_environment`."""
DRIVER = "INJECTED_FAULTS_DRIVER"
"""Environment variable: the process of the command, set by its first process and inherited by all others."""
WAIT_SECONDS = 200.0
ROOT = str(Path(__file__).resolve().parents[3])
FOLDER = str(Path(__file__).resolve().parent)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One kill. It happens once: its note is made first, and a fault whose note exists is over."""

    call: str
    """`module:function` or `module:class.method`; it has a parameter `step`, or one with an attribute `step`."""
    step: int
    """The value of that. The first call with it, or with a later step, is the one."""
    line: int
    """Lines of this repository's code that this call still runs; if it has fewer, the kill comes as it returns."""
    victim: str
    """`itself`: the process that makes the call; `driver`: the process of the command."""
    trials: Sequence[str]
    """Identities of the trials of which the first to come here is the one; none: any process."""
    note: str
    """File that says afterwards who died where."""
    after: Sequence[str] = ()
    """Notes of other faults that must have happened first: the call waits for them."""


def as_environment(faults: Sequence[Fault]) -> dict[str, str]:
    """The variables that make a command suffer these faults."""
    path = os.pathsep.join([FOLDER, ROOT])
    return {"PYTHONPATH": path, FAULTS: json.dumps([asdict(fault) for fault in faults])}


_identity = ""
"""Of the trial that this process trains; empty elsewhere."""


def _is_of(trials: Sequence[str]) -> bool:
    """Whether this process belongs to one of the trials: a worker of it, or a shard of its bank."""
    if _identity or not trials:
        return not trials or _identity in trials
    import ray

    me = ray.get_runtime_context()
    return any(trial[:16] in f"{me.namespace} {me.get_actor_name()}" for trial in trials)


def _is_due(fault: Fault, step: int) -> bool:
    if step < fault.step or Path(fault.note).exists() or not _is_of(fault.trials):
        return False
    deadline = time.monotonic() + WAIT_SECONDS
    while not all(Path(note).exists() for note in fault.after):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the faults {fault.after} did not happen, so {fault.note} cannot")
        time.sleep(0.02)
    return True


def _strike(fault: Fault, step: int, where: str) -> None:
    """Make the note, then kill; does nothing when another process was first."""
    try:
        with open(fault.note, "x") as note:
            json.dump({"step": step, "where": where, "victim": fault.victim, "time": time.time()}, note)
    except FileExistsError:
        return
    os.kill(os.getpid() if fault.victim == "itself" else int(os.environ[DRIVER]), signal.SIGKILL)


def _countdown(fault: Fault, step: int) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that strikes when `fault.line` lines of this repository have run."""
    left = fault.line

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        name = frame.f_code.co_filename
        if not name.startswith(ROOT) or name == __file__:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                _strike(fault, step, f"{os.path.relpath(name, ROOT)}:{frame.f_lineno}, in {frame.f_code.co_name}")
        return trace if left >= 0 else None

    return trace


def _step_of(arguments: Mapping[str, Any]) -> int:
    if "step" in arguments:
        return int(arguments["step"])
    return next(value.step for value in arguments.values() if isinstance(getattr(value, "step", None), int))


def _fatal(function: Callable[..., Any], faults: Sequence[Fault]) -> Callable[..., Any]:
    """The function, with its faults."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        step = _step_of(signature.bind(*args, **kwargs).arguments)
        fault = next((each for each in faults if _is_due(each, step)), None)
        if fault is None:
            return function(*args, **kwargs)
        sys.settrace(_countdown(fault, step))
        try:
            result = function(*args, **kwargs)
        finally:
            sys.settrace(None)
        _strike(fault, step, f"at the end of {function.__qualname__}")
        return result

    return call


def _knowing(train: Callable[..., Any]) -> Callable[..., Any]:
    """`workers.trial.train`, which tells this process whose worker it is."""

    @wraps(train)
    def call(config: Any, context: Any) -> Any:
        global _identity
        _identity = context.identity
        return train(config, context)

    return call


def _change(module: ModuleType, faults: Sequence[Fault]) -> None:
    if module.__name__ == "workers.trial":
        module.train = _knowing(module.train)  # type: ignore[attr-defined]
    for name in {fault.call.partition(":")[2] for fault in faults}:
        *outer, last = name.split(".")
        owner: Any = module
        for part in outer:
            owner = getattr(owner, part)
        mine = [fault for fault in faults if fault.call.partition(":")[2] == name]
        setattr(owner, last, _fatal(getattr(owner, last), mine))


class _Finder(MetaPathFinder):
    """Changes the modules that faults name right after they have been loaded, before anybody imports from them."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults: dict[str, list[Fault]] = {"workers.trial": []}
        for fault in faults:
            self.faults.setdefault(fault.call.partition(":")[0], []).append(fault)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self.faults else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            _change(module, self.faults[fullname])

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


if FAULTS in os.environ:
    os.environ.setdefault(DRIVER, str(os.getpid()))
    sys.meta_path.insert(0, _Finder([Fault(**each) for each in json.loads(os.environ[FAULTS])]))
