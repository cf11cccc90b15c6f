from collections.abc import Callable

import pytest
import torch

from models.registry import build_model
from models.settings import ModelSettings
from workers.engine import build_engine, parameter_groups, plain_weights, set_learning_rate
from workers.settings import TrialConfig

TrialMaker = Callable[..., TrialConfig]


def test_matrices_decay_and_everything_else_does_not() -> None:
    model = build_model(ModelSettings(), 256, seed=0)
    decayed, free = parameter_groups(model, 0.1)
    assert decayed["weight_decay"] == 0.1 and free["weight_decay"] == 0.0
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    free_names = {names[id(parameter)].rpartition("layers.")[2] for parameter in free["params"]}
    expected = {f"{layer}.{name}" for layer in (0, 1) for name in ("norm.weight", "mixer.norm.weight")}
    expected |= {f"{layer}.mixer.{name}" for layer in (0, 1) for name in ("A_log", "dt_bias", "D", "conv1d.bias")}
    assert free_names == expected | {"backbone.norm_f.weight"}
    assert len(decayed["params"]) + len(free["params"]) == len(names)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_moves_weights_in_the_precision_asked_for(precision: str, small_trial: TrialMaker) -> None:
    config = small_trial("zero", trial={"precision": precision})
    engine = build_engine(build_model(config.model, 256, seed=0), config, world=1)
    before = {name: value.clone() for name, value in plain_weights(engine).items()}
    assert {value.dtype for value in before.values()} == {torch.float32 if precision == "fp32" else torch.bfloat16}
    set_learning_rate(engine, 1e-2)
    tokens = torch.randint(256, (6, 33), generator=torch.Generator().manual_seed(0))
    nll_sum, state = engine(tokens[:, :-1], tokens[:, 1:], None)
    assert nll_sum.dtype == torch.float32 and state[0]["recurrent"].dtype == torch.float32
    engine.backward(nll_sum / (6 * 32))
    engine.step()
    after = plain_weights(engine)
    assert all(not torch.equal(before[name], after[name]) for name in before if name.endswith("proj.weight"))


def test_the_rate_of_a_step_reaches_every_group(small_trial: TrialMaker) -> None:
    config = small_trial("zero")
    engine = build_engine(build_model(config.model, 256, seed=0), config, world=1)
    set_learning_rate(engine, 0.123)
    assert [group["lr"] for group in engine.optimizer.param_groups] == [0.123, 0.123]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("micro_rows", [6, 3])
def test_a_gradient_that_is_not_finite_moves_neither_weights_nor_moments(
    micro_rows: int, stage: int, precision: str, small_trial: TrialMaker
) -> None:
    def trained(batches: list[int], poisoned: int | None = None) -> dict[str, torch.Tensor]:
        config = small_trial("zero", trial={"zero_stage": stage, "precision": precision, "micro_rows": micro_rows})
        engine = build_engine(build_model(config.model, 256, seed=0), config, world=1)
        set_learning_rate(engine, 1e-2)
        for batch in batches:
            tokens = torch.randint(256, (6, 33), generator=torch.Generator().manual_seed(batch))
            for part, rows in enumerate(tokens.split(micro_rows)):
                nll_sum, _ = engine(rows[:, :-1], rows[:, 1:], None)
                # Only the first micro-batch is poisoned: what the others add must not hide it.
                engine.backward(nll_sum * (float("nan") if batch == poisoned and part == 0 else 1 / 192))
                engine.step()
            assert engine.was_step_applied() == (batch != poisoned)
        return {name: value.clone() for name, value in plain_weights(engine).items()}

    skipped, plain = trained([0, 1, 2], poisoned=1), trained([0, 2])
    assert all(torch.equal(skipped[name], plain[name]) for name in plain)
