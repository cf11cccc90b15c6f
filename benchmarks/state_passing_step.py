"""What an intervention costs: a step with it beside a step from zero state, in alternation within one process.

    python -m benchmarks.state_passing_step [--rows 48 512] [--rounds 30] [--arms state_passing random_noise ...]

The engine, model, windows and intervention are those of a demo trial; banks are sharded ones, on a private Ray cluster,
in the mode `everything`. A row's state takes 128 KiB: 48 rows (the demo) are 6 MiB of state per step, 512 rows 64 MiB.
A round takes one step of each arm, so that a busy moment hits all of them; the table gives medians of the rounds and,
of the rounds' ratios to two steps from zero, the median with its quartiles. The control's step tells the model of no
state, and so saves the products with it; `zero, given` starts from zeros that the model is given like any other state.
What an arm costs beyond it is what drawing, passing and the bank cost.
"""

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.markdown import header, table
from models.interface import State
from models.registry import build_model
from storage.bank.contract import StateBank
from storage.bank.layout import BankLayout
from storage.token_cache import open_token_cache
from sweeps.ray_session import ray_session
from workers.assembly import assemble_intervention, open_bank
from workers.bank_plan import state_parts
from workers.context import TrialContext, join_alone
from workers.engine import build_engine
from workers.intervention_settings import InterventionSettings
from workers.interventions import Intervention
from workers.interventions.zero import ZeroState
from workers.memory import keep_freed_memory
from workers.settings import BankSettings, TrialConfig, TrialSettings
from workers.state_vector import StateVector
from workers.training import TrainingLoop
from workers.training_windows import training_order

ROWS = (48, 512)
ROUNDS = 30
ARMS_TIMED = ("state_passing", "random_noise", "fitted_noise")
WARM_UP = 4
GIVEN = "zero, given"


class GivenZero(ZeroState):
    """The control, with its zeros handed to the model."""

    def __init__(self, vector: StateVector) -> None:
        self.vector = vector

    def initial_state(self, step: int, rows: np.ndarray) -> State:
        return self.vector.unpack(torch.zeros(len(rows), self.vector.elements))


def start_bank(name: str, opened: list[StateBank], layout: BankLayout) -> StateBank:
    """A bank of one shard; it is closed with the others."""
    # Ray reads how to authenticate when it is imported, so not before the session has said it.
    from storage.bank.sharded import start_sharded_bank

    opened.append(start_sharded_bank(layout, shards=1, namespace="benchmark", trial=name))
    return opened[-1]


def loop_of(arm: str, rows: int, opened: list[StateBank], cache: Path) -> TrainingLoop:
    """A demo trial's loop, ready to step."""
    trial = TrialSettings(rows=rows, steps=10**6)
    named = "zero" if arm == GIVEN else arm
    config = TrialConfig(
        arm=named, trial=trial, bank=BankSettings(mode="everything"), intervention=InterventionSettings(sigma=0.1)
    )
    model = build_model(config.model, 256, seed=0)
    vector = StateVector(model.state_spec(), state_parts(config))
    context = TrialContext(folder=cache, cache=cache, identity="benchmark")
    context.open_bank = partial(start_bank, f"{arm}-{rows}", opened)
    tokens = open_token_cache(config.data, cache)
    batches = training_order(config, tokens)
    bank = open_bank(config, context, vector)
    intervention: Intervention = assemble_intervention(config, context, batches, vector, bank)
    if arm == GIVEN:
        intervention = GivenZero(vector)
    return TrainingLoop(build_engine(model, config, 1), intervention, batches, config, context)


def measure(arms: list[str], rows: int, rounds: int, cache: Path) -> list[list[object]]:
    """The rows of the table for one number of rows."""
    opened: list[StateBank] = []
    loops = {arm: loop_of(arm, rows, opened, cache) for arm in ("zero", GIVEN, *arms)}
    for step in range(WARM_UP + rounds):
        for loop in loops.values():
            loop.step(step)
    for bank in opened:
        bank.close()
    seconds = {arm: [entry["seconds"] for entry in loop.history[WARM_UP:]] for arm, loop in loops.items()}
    elements = StateVector(loops["zero"].engine.module.model.state_spec(), ["recurrent"]).elements
    lines: list[list[object]] = []
    for arm, taken in seconds.items():
        megabytes = f"{rows * elements * 4 / 2**20:.0f} MiB"
        line: list[object] = [arm, megabytes, f"{statistics.median(taken) * 1000:.0f} ms"]
        for reference in ("zero", GIVEN):
            ratios = [mine / theirs for mine, theirs in zip(taken, seconds[reference], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            line += [f"{middle:.3f}", f"{low:.3f} to {high:.3f}"]
        lines.append(line)
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="rows of a step (default 48 512)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that are timed (default 30)")
    parser.add_argument(
        "--arms", nargs="+", default=ARMS_TIMED, help="arms beside zero (default: state passing, noise)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    join_alone()
    print(header(f"A step of each arm over a zero step, {options.rounds} rounds"))
    lines: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder, ray_session(None, 2):
        for rows in options.rows:
            lines += measure(options.arms, rows, options.rounds, Path(folder))
    print(table(["arm", "state per step", "step", "over zero", "quartiles", "over zero, given", "quartiles"], lines))


if __name__ == "__main__":
    main()
