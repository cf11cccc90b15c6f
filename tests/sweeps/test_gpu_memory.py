"""The memory that plans show for each GPU: by hand, against the paper's facts, and what is refused."""

import gc
from dataclasses import replace
from typing import Any

import pytest

from models.loss import LOGITS_PER_CHUNK
from models.settings import ModelSettings
from sweeps.gpu_memory import BUCKET, LOGITS, check_gpu_memory, gpu_memory, nearest_that_fits
from sweeps.gpu_settings import GpuSettings
from sweeps.plan import make_plan
from sweeps.settings import SettingError
from workers.settings import TrialConfig, TrialSettings
from workers.shapes import model_dims

PILE = 50_288
"""Rows of the embedding of the published Mamba-2 models: 50,277 entries in steps of 16."""
PARAMETERS_370M = 50_288 * 1024 + 48 * (1024 + 4384 * 1024 + 2304 * 5 + 3 * 32 + 2048 + 2048 * 1024) + 1024


def trial(arm: str = "zero", size: str = "370m", architecture: str = "mamba2", **changes: Any) -> TrialConfig:
    values = {"context": 2048, "rows": 256, "micro_rows": 8, "precision": "bf16", "device": "cuda", **changes}
    return TrialConfig(
        arm=arm, model=ModelSettings(architecture=architecture, size=size), trial=TrialSettings(**values)
    )


def paper(arm: str = "zero", size: str = "370m", *settings: str) -> TrialConfig:
    """The trial of that arm and size in the sweep `interventions` on the paper's recipe, with its tokenizer."""
    plan = make_plan("interventions", "paper", list(settings), 1, to_show=True)
    return next(one.config for one in plan.trials if one.config.arm == arm and one.config.model.size == size)


def test_mamba2_370m_by_hand() -> None:
    config = paper("state_passing", "370m", "trial.workers=1", "trial.micro_rows=8")
    dims = model_dims(config)
    assert (dims.parameters(), dims.fp32_parameters()) == (PARAMETERS_370M, 48 * 3 * 32)
    needs = gpu_memory(config)
    assert needs.weights == 2 * PARAMETERS_370M + 2 * 48 * 3 * 32
    assert needs.gradients == 6 * PARAMETERS_370M and needs.optimizer == 12 * PARAMETERS_370M
    # D = 1024, I = 2048, 2 G N = 256, H = 32: 11,808 numbers in bf16 and 1,122 in fp32, for 48 layers and one more.
    kept = 2 * (1024 + (2 * 2048 + 256 + 32) + (2048 + 256) + 2 * 2048) + 4 * (1024 + 1 + 32 + 1 + 2 * 32)
    assert needs.activations == 8 * 2048 * kept * 49
    assert needs.loss == 8 * 2048 * 1024 * (4 + 4) + 8 * PILE * 1024 + 12 * 2**22
    # 32 heads of 64 x 128 in fp32 and 2304 x 3 inputs of the convolution in bf16, in each of 48 layers.
    assert needs.states == 2 * 8 * 48 * (32 * 64 * 128 * 4 + 2304 * 3 * 2)
    assert needs.bank == 3 * 256 * 48 * 32 * 64 * 128 * 4
    assert needs.total == sum(value for name, value in needs.as_json().items() if name != "total")


def test_states_of_1_3b_are_those_that_the_paper_needs() -> None:
    # 96 MiB (100 MB) of recurrent state a sequence, 24 GiB (25 GB) for the 256 sequences of a step of 0.5M tokens.
    config = trial("state_passing", "1.3b")
    assert model_dims(config).state_elements()["recurrent"] * 4 == 96 * 2**20
    assert gpu_memory(config).bank == 3 * 24 * 2**30
    shared = gpu_memory(replace(config, trial=replace(config.trial, workers=8)))
    assert shared.bank == 9 * 2**30


def test_zero_stages_share_optimiser_gradients_and_weights() -> None:
    def of(stage: int, workers: int, precision: str = "bf16", architecture: str = "mamba2") -> list[int]:
        needs = gpu_memory(
            trial(zero_stage=stage, workers=workers, precision=precision, micro_rows=0, architecture=architecture)
            if architecture == "mamba2"
            else trial(
                "zero", "340m", architecture, zero_stage=stage, workers=workers, precision=precision, micro_rows=0
            )
        )
        return [needs.weights, needs.gradients, needs.optimizer]

    parameters = model_dims(trial()).parameters()
    assert of(0, 4) == [of(0, 1)[0], 6 * parameters, 12 * parameters]
    assert of(1, 4) == [of(0, 1)[0], 6 * parameters, 3 * parameters]
    assert of(2, 4) == [of(0, 1)[0], parameters + 10**9, 3 * parameters]
    assert of(1, 4, "fp32") == [4 * parameters, 5 * parameters, 3 * parameters]
    parameters = model_dims(trial("zero", "340m", "gla")).parameters()
    assert of(3, 4, "bf16", "gla")[0] == parameters * 5 // 2


def test_recomputed_layers_keep_their_inputs_and_one_layer() -> None:
    kept, again = gpu_memory(trial()), gpu_memory(trial(activation_checkpointing=True))
    per_layer = kept.activations // 49
    assert again.activations == 8 * 2048 * 4 * 1024 * 48 + 2 * per_layer
    assert replace(kept, activations=0) == replace(again, activations=0)


def test_an_arm_that_does_not_train_holds_weights_and_a_state() -> None:
    needs = gpu_memory(trial("base"))
    assert needs.total == needs.weights + needs.states


def test_logits_at_once_are_those_of_the_loss() -> None:
    assert LOGITS == LOGITS_PER_CHUNK


@pytest.mark.parametrize(
    ("config", "memory_gib", "advice"),
    [
        (trial("state_passing"), 70, "write trial.micro_rows=4, which needs 52.9 GiB"),
        (trial("state_passing", "1.3b", workers=4), 80, "write trial.micro_rows=4, which needs 52.3 GiB"),
        (trial(micro_rows=1), 9.5, "write trial.micro_rows=1 trial.activation_checkpointing=true, which needs "),
        (trial("state_passing", "1.3b", micro_rows=1), 80, "write trial.micro_rows=1 trial.workers=2, which needs "),
        (trial("zero", "2.7b"), 2, "no rows of a forward pass, ZeRO stage or number of workers make it fit"),
    ],
    ids=["rows", "rows of workers", "recompute", "workers", "nothing"],
)
def test_the_nearest_that_fits_is_named_and_fits(config: TrialConfig, memory_gib: float, advice: str) -> None:
    gpu = GpuSettings(memory_gib=memory_gib)
    assert gpu_memory(config).total > gpu.usable_bytes
    said = nearest_that_fits(config, gpu)
    assert said.startswith(advice)
    changes = dict(word.removeprefix("trial.").split("=") for word in said.replace(",", "").split() if "=" in word)
    values: dict[str, Any] = {
        name: value == "true" if value in ("true", "false") else int(value) for name, value in changes.items()
    }
    if values:
        assert gpu_memory(replace(config, trial=replace(config.trial, **values))).total <= gpu.usable_bytes


def test_a_plan_that_cannot_fit_is_refused_with_the_number_that_breaks_it() -> None:
    plan = make_plan(
        "interventions", "paper", ["gpu.memory_gib=64", "trial.workers=1", "trial.micro_rows=8"], 1, to_show=True
    )
    with pytest.raises(SettingError) as caught:
        check_gpu_memory(plan)
    for part in (
        "370m state_passing needs 65.2 GiB on each of its GPUs (weights 702.6 MiB",
        "activations 21.0 GiB",
        "bank 36.0 GiB",
        "of gpu.memory_gib=64 there are 57.6 GiB for it; write trial.micro_rows=4",
    ):
        assert part in str(caught.value)
    roomy = make_plan("interventions", "paper", ["gpu.memory_gib=400", "trial.workers=1"], 1, to_show=True)
    check_gpu_memory(roomy)
    assert roomy.identity == make_plan("interventions", "paper", [], 1, to_show=True).identity


@pytest.mark.parametrize(
    ("setting", "value"), [("memory_gib", 0.0), ("utilization", 1.5), ("tflops", -1.0), ("usd_per_hour", -0.5)]
)
def test_a_gpu_that_cannot_be_is_refused(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"gpu.{setting} is {value}; write"):
        replace(GpuSettings(), **{setting: value})  # type: ignore[arg-type]


def living_storages() -> dict[int, int]:
    """Address -> bytes of the memory of every tensor that Python knows, and of its gradient."""
    import torch

    gc.collect()
    tensors = [value for value in gc.get_objects() if isinstance(value, torch.Tensor)]
    tensors += [value.grad for value in tensors if value.is_leaf and value.grad is not None]
    return {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "precision", "for_the_step"),
    [(0, "fp32", 0), (1, "fp32", 4), (0, "bf16", 4), (1, "bf16", 0), (2, "bf16", 0)],
)
def test_weights_gradients_and_optimiser_are_what_deepspeed_holds(
    stage: int, precision: str, for_the_step: int
) -> None:
    """Between a backward pass and its step; the bytes per parameter of copies that the step makes come on top."""
    import torch

    from models.registry import build_model
    from workers.context import join_alone
    from workers.engine import build_engine

    join_alone()
    before = living_storages()
    settings = TrialSettings(rows=2, context=8, zero_stage=stage, precision=precision)
    config = TrialConfig(arm="zero", trial=settings)
    engine = build_engine(build_model(config.model, 256, seed=0), config, world=1)
    tokens = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))
    for again in (False, True):
        # The second time the optimiser has its moments.
        if again:
            engine.step()
        engine.backward(engine(tokens[:, :-1], tokens[:, 1:], None)[0])
    held = sum(size for place, size in living_storages().items() if before.get(place) != size and size != 2 * BUCKET)
    needs, parameters = gpu_memory(config), model_dims(config).parameters()
    bucket = 2 * BUCKET if stage == 2 else 0
    planned = needs.weights + needs.gradients + needs.optimizer - bucket - for_the_step * parameters
    assert held == pytest.approx(planned, rel=0.01)
