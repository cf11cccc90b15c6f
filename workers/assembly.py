"""Puts a trial's bank and intervention together, as its settings ask, on the worker that the context describes."""

from typing import Any

from storage.bank.contract import StateBank
from storage.bank.layout import BankLayout
from storage.batch_order import StreamOrder, WindowOrder
from workers.bank_plan import EVERYTHING_LIMIT, bank_mode, plan_bank
from workers.carried_states import CarriedStates, ResidentStates, Sources
from workers.context import TrialContext
from workers.interventions import Intervention, InterventionContext, build_intervention
from workers.settings import TrialConfig
from workers.state_vector import StateVector
from workers.training import TrainingLoop, own_rows


def open_bank(config: TrialConfig, context: TrialContext, vector: StateVector) -> StateBank | None:
    """The trial's bank, laid out for what its arm puts there; None for an arm that uses none."""
    content = config.bank_content
    if not content:
        return None
    layout = BankLayout(
        rows=config.batch_rows,
        elements=vector.elements,
        wire_dtype=config.bank.wire_dtype,
        groups=tuple(vector.groups()) if "moments" in content else (),
        capacity=config.intervention.capacity if "reservoir" in content else 0,
    )
    return context.open_bank(layout)


def assemble_intervention(
    config: TrialConfig,
    context: TrialContext,
    batches: WindowOrder | StreamOrder,
    vector: StateVector,
    bank: StateBank | None,
) -> Intervention:
    """The intervention of the trial's arm on this worker, with everything it may use."""

    def carry(sources: Sources) -> CarriedStates:
        assert bank is not None, "an arm that passes states has a bank"
        if bank_mode(config, bank.layout.rows * bank.layout.row_bytes) == "everything":
            return CarriedStates(vector, bank, sources, context.device)
        return ResidentStates(vector, bank, sources, context.device, own_rows(config, context))

    return build_intervention(
        config.arm,
        InterventionContext(
            settings=config.intervention,
            vector=vector,
            rows=config.batch_rows,
            seed=config.trial.seed,
            device=context.device,
            bank=bank,
            carry=carry if "states" in config.bank_content else None,
            document_starts=batches.document_starts if isinstance(batches, StreamOrder) else None,
        ),
    )


def bank_record(
    config: TrialConfig, context: TrialContext, loop: TrainingLoop, bank: StateBank | None
) -> dict[str, Any] | None:
    """What went through the bank, and the digest of what it holds after the last step; None but on the first worker.

    The digest costs a reading of all states: above `EVERYTHING_LIMIT` bytes of them it is left out (None).
    """
    plan = plan_bank(config)
    if bank is None or plan is None:
        return None
    small = bank.layout.rows * bank.layout.row_bytes <= EVERYTHING_LIMIT
    if small:
        loop.intervention.prepare_snapshot()
    bank.flush()
    context.barrier()
    record: dict[str, Any] | None = None
    if context.is_first:
        digest = bank.digest() if small else None
        record = {"mode": plan.mode, "shards": plan.shards, "digest": digest, **bank.counters()}
    context.barrier()
    return record
