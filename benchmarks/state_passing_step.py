"""What state passing costs: a step with it beside a step from zero state, in alternating pairs within one process.

The engine, model and windows are those of a demo trial; the bank is the sharded one, on a private Ray cluster.
"""

import statistics
import tempfile
from pathlib import Path

import torch

from benchmarks.markdown import header, table
from models.registry import build_model
from storage.bank.contract import StateBank
from storage.bank.layout import BankLayout
from storage.batch_order import WindowOrder
from storage.token_cache import open_token_cache
from sweeps.ray_session import ray_session
from workers.context import TrialContext, join_alone
from workers.engine import build_engine
from workers.interventions import InterventionContext, build_intervention
from workers.settings import TrialConfig
from workers.state_vector import StateVector
from workers.training import TrainingLoop

PAIRS = 30
WARM_UP = 5


def loop_of(arm: str, bank: StateBank | None, cache: Path) -> TrainingLoop:
    """A demo trial's loop, ready to step."""
    config = TrialConfig(arm=arm)
    model = build_model(config.model, 256, seed=0)
    vector = StateVector(model.state_spec(), config.intervention.parts)
    context = InterventionContext(
        settings=config.intervention,
        vector=vector,
        zero_state=model.zero_state,
        rows=config.trial.rows,
        seed=0,
        bank=bank,
    )
    tokens = open_token_cache(config.data, cache)
    batches = WindowOrder(tokens, context=config.trial.context, rows=config.trial.rows, seed=0)
    trial_context = TrialContext(folder=cache, cache=cache, identity="benchmark")
    return TrainingLoop(
        build_engine(model, config, 1), build_intervention(arm, context), batches, config, trial_context
    )


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    join_alone()
    print(header("State-passing step over zero step"))
    with tempfile.TemporaryDirectory() as folder, ray_session(None, 2):
        zero = loop_of("zero", None, Path(folder))
        trial = zero.config.trial
        elements = zero.engine.module.model.state_spec()
        vector = StateVector(elements, ["recurrent"])
        # Ray reads how to authenticate when it is imported, so not before the session has said it.
        from storage.bank.sharded import start_sharded_bank

        layout = BankLayout(rows=trial.rows, elements=vector.elements)
        with start_sharded_bank(layout, shards=1, namespace="benchmark", trial="benchmark") as bank:
            passing = loop_of("state_passing", bank, Path(folder))
            for step in range(WARM_UP + PAIRS):
                for loop in (zero, passing):
                    loop.step(step)
    seconds = [[entry["seconds"] for entry in loop.history[WARM_UP:]] for loop in (zero, passing)]
    ratios = [passing_s / zero_s for zero_s, passing_s in zip(*seconds, strict=True)]
    row = [
        PAIRS,
        f"{statistics.median(seconds[0]) * 1000:.0f} ms",
        f"{statistics.median(seconds[1]) * 1000:.0f} ms",
        f"{statistics.median(ratios):.3f}",
        f"{layout.rows * layout.elements * 4 / 2**20:.1f} MiB",
    ]
    print(table(["pairs", "zero step", "state-passing step", "median of the pairs' ratios", "state per step"], [row]))


if __name__ == "__main__":
    main()
