"""How many bytes the state bank of a trial moves and holds, and which mode that leads to. Imports no torch.

The planner shows these numbers and checks them against the machine; the trial itself takes its mode and its number of
shards from here, so that what runs is what was shown. All numbers are upper bounds, in bytes.
Legend: G rows of a step, W workers, S shards, E elements of a row, w bytes of an element on the wire, C capacity.
"""

from dataclasses import asdict, dataclass
from typing import Any

from workers.settings import TrialConfig
from workers.shapes import model_dims

EVERYTHING_LIMIT = 256 * 2**20
"""Up to so many bytes of states per step, `bank.mode=auto` sends all of them through the bank."""
FLOAT_BYTES = 4
WIRE_BYTES = {"fp32": 4, "bf16": 2}
MOMENT_BYTES = 3 * 8
"""Of one row and group: count, sum and sum of squares in float64."""
GENERATIONS = 2
"""Steps whose states and moments the bank keeps."""
BUFFERS = 3
"""Of a worker in the mode `everything`, one micro-batch each: packed, in use, and withdrawn for the next."""


@dataclass(frozen=True, kw_only=True)
class BankPlan:
    """What one trial asks of the state bank."""

    mode: str
    """`everything` or `resident`: `bank.mode`, resolved."""
    shards: int
    """S: `bank.shards`, resolved."""
    workers: int
    row_bytes: int
    """One row on the wire, E w."""
    step_bytes: int
    """What all workers together hand to the bank in one step."""
    shard_bytes: int
    """What one shard holds."""
    worker_bytes: int
    """What one worker holds outside the bank, on its device: buffers, its rows in the mode `resident`, its copy of the
    reservoir."""

    @property
    def bank_bytes(self) -> int:
        """What all shards hold together."""
        return self.shards * self.shard_bytes

    @property
    def held_bytes(self) -> int:
        """What shards and workers hold together."""
        return self.bank_bytes + self.workers * self.worker_bytes

    def as_json(self) -> dict[str, Any]:
        """For the plan's JSON."""
        return asdict(self) | {"held_bytes": self.held_bytes}


def state_parts(config: TrialConfig) -> tuple[str, ...]:
    """The parts of the state that the bank is given: `intervention.parts`, or all for an arm without that choice."""
    if any(arm.bank and "parts" not in arm.settings for arm in config.drawing_arms):
        return tuple(model_dims(config).state_elements())
    return config.intervention.parts


def bank_mode(config: TrialConfig, step_state_bytes: int) -> str:
    """`everything` or `resident`, for so many bytes of states in one step (all G rows)."""
    if config.bank.mode != "auto":
        return config.bank.mode
    return "everything" if step_state_bytes <= EVERYTHING_LIMIT else "resident"


def bank_shards(config: TrialConfig) -> int:
    """Number of shards: `bank.shards`, or one for each worker."""
    return config.bank.shards or config.trial.workers


def plan_bank(config: TrialConfig) -> BankPlan | None:
    """The needs of the trial's bank; None for an arm that uses none."""
    content = config.bank_content
    if not content:
        return None
    dims = model_dims(config)
    elements = sum(dims.state_elements()[part] for part in state_parts(config))
    row_bytes, rows = elements * WIRE_BYTES[config.bank.wire_dtype], config.batch_rows
    mode = bank_mode(config, rows * row_bytes)
    shards, workers = bank_shards(config), config.trial.workers
    shard_rows = -(-rows // shards)
    step = shard = worker = 0
    if "states" in content:
        # A resident row goes to the bank for a snapshot only, or when it is permuted to another worker's.
        stays = mode == "resident" and (workers == 1 or config.intervention.passing == "in_place")
        step += 0 if stays else rows * row_bytes
        shard += GENERATIONS * shard_rows * row_bytes
        # Buffers of a micro-batch; or two generations, and a copy of one for a snapshot.
        kept = BUFFERS * config.micro_rows if mode == "everything" else (GENERATIONS + 1) * (rows // workers)
        worker += kept * elements * FLOAT_BYTES
    if "moments" in content:
        groups = dims.state_groups()
        moments = sum(groups[part] for part in state_parts(config)) * MOMENT_BYTES
        step += rows * moments
        shard += GENERATIONS * shard_rows * moments
    if "reservoir" in content:
        # The smallest keys so far, and of the newest step those that may yet be among them.
        capacity = config.intervention.capacity
        step += min(rows, capacity) * row_bytes
        shard += (capacity + min(shard_rows, capacity)) * row_bytes
        # While a copy is renewed, the old one, the new one and what is fetched for it are there.
        worker += 3 * capacity * elements * FLOAT_BYTES
    return BankPlan(
        mode=mode,
        shards=shards,
        workers=workers,
        row_bytes=row_bytes,
        step_bytes=step,
        shard_bytes=shard,
        worker_bytes=worker,
    )
