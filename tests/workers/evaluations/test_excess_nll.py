from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.interface import RecurrentLanguageModel
from models.registry import ARCHITECTURES
from storage.windows import EvaluationWindow
from tests.workers.evaluations.byte_models import byte_model, forgetful_model, report_windows
from workers.evaluations import excess_nll
from workers.evaluations.diagnostics import LeftOut

CPU = torch.device("cpu")


@torch.no_grad()
def direct_nll(model: RecurrentLanguageModel, window: EvaluationWindow, position: int, first: int) -> float:
    """NLL of the token at `position` after the tokens from `first` on, by one pass of its own."""
    tokens = torch.from_numpy(window.tokens(first, position + 1))[None]
    hidden, _ = model(tokens[:, :-1])
    return -float(torch.log_softmax(model.head(hidden[0, -1]).double(), dim=-1)[tokens[0, -1]])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("length", [100, 48])
def test_both_scores_are_those_of_passes_over_one_history_each(
    architecture: str, length: int, token_caches: Path
) -> None:
    model, train_length = byte_model(architecture), 16
    (window,) = report_windows(token_caches, length, 1)
    short = excess_nll.short_history_nll(model, window, length, train_length, CPU)
    (whole,) = excess_nll.whole_history_nll(model, [window], length, 32, CPU)
    assert short.shape == whole.shape == (length,) and short.dtype == whole.dtype == np.float64
    for position in range(1, length + 1):
        first = max(0, ((position - 1) // train_length - 1) * train_length)
        assert train_length < position - first <= 2 * train_length or first == 0
        assert short[position - 1] == pytest.approx(direct_nll(model, window, position, first), rel=1e-6)
        assert whole[position - 1] == pytest.approx(direct_nll(model, window, position, 0), rel=1e-6)
    np.testing.assert_allclose(short[: 2 * train_length], whole[: 2 * train_length], rtol=1e-6)


def test_many_blocks_go_through_in_several_passes(token_caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (window,) = byte_model("mamba2"), report_windows(token_caches, 500, 1)
    at_once = excess_nll.short_history_nll(model, window, 500, 16, CPU)
    monkeypatch.setattr(excess_nll, "TOKENS_AT_ONCE", 100)
    np.testing.assert_allclose(excess_nll.short_history_nll(model, window, 500, 16, CPU), at_once, rtol=1e-6)


def test_a_model_that_forgets_has_no_excess(small_trial: Any, make_context: Any, token_caches: Path) -> None:
    config = small_trial("base", trial={"context": 16}, eval={"length": 200})
    windows = report_windows(token_caches, 200, 2)
    table, _ = excess_nll.measure(forgetful_model(), windows, config, make_context())
    np.testing.assert_allclose(table.columns["excess_nll"], 0, atol=1e-6)
    remembering, _ = excess_nll.measure(byte_model("mamba2"), windows, config, make_context())
    assert np.abs(remembering.columns["excess_nll"]).max() > 1e-3


def test_the_tables_hold_the_sums_of_the_scored_positions(
    small_trial: Any, make_context: Any, token_caches: Path
) -> None:
    config = small_trial("base", trial={"context": 24}, eval={"length": 200, "chunk": 64})
    windows, model = report_windows(token_caches, 200, 3), byte_model("rwkv6")
    table, by_window = excess_nll.measure(model, windows, config, make_context())
    edges = [48, 54, 64, 76, 91, 108, 128, 152, 181, 200]
    assert table.about == {"train_length": 24, "windows": 3, "edges": edges, "documents": 3, "far": [91, 200]}
    assert table.position.tolist() == edges[1:] and table.columns["count"].tolist() == (3 * np.diff(edges)).tolist()
    rows = by_window.columns
    assert rows["window"].tolist() == [0] * 9 + [1] * 9 + [2] * 9 and rows["position"].tolist() == edges[1:] * 3
    assert rows["document"].tolist() == [window.document_id for window in windows for _ in range(9)]
    for number, window in enumerate(windows):
        (whole,) = excess_nll.whole_history_nll(model, [window], 200, 200, CPU)
        short = excess_nll.short_history_nll(model, window, 200, 24, CPU)
        for index, (low, high) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
            row = number * 9 + index
            assert rows["count"][row] == high - low
            assert rows["whole_nll_sum"][row] == pytest.approx(whole[low:high].sum(), rel=1e-6)
            assert rows["short_nll_sum"][row] == pytest.approx(short[low:high].sum(), rel=1e-6)
    whole_B, short_B = (rows[name].reshape(3, 9).sum(axis=0) for name in ("whole_nll_sum", "short_nll_sum"))
    np.testing.assert_allclose(table.columns["whole_nll"], whole_B / table.columns["count"], rtol=1e-12)
    np.testing.assert_allclose(table.columns["short_nll"], short_B / table.columns["count"], rtol=1e-12)
    np.testing.assert_allclose(table.columns["excess_nll"], (whole_B - short_B) / table.columns["count"], atol=1e-12)
    far = (whole_B - short_B)[4:].sum() / (3 * (200 - 91))
    assert table.summary == {"far_excess": pytest.approx(far, abs=1e-12)}


def test_sums_are_formed_in_float64() -> None:
    nll = np.full((1, 2**12), 2.0**-30, np.float32)
    nll[0, 0] = 1.0
    assert excess_nll.bin_sums(nll, np.array([0, 2**12])).tolist() == [[1 + (2**12 - 1) * 2.0**-30]]


@pytest.mark.parametrize(
    ("length", "train_length", "far"),
    [(16384, 64, (4096, 8192)), (8192, 2048, (4096, 8192)), (16384, 4096, (8192, 16384)), (1024, 64, (512, 1024))],
)
def test_the_summary_is_of_the_tables_range_or_of_the_last_octave(
    length: int, train_length: int, far: tuple[int, int]
) -> None:
    assert excess_nll.far_range(excess_nll.excess_edges(length, train_length)) == far


def test_windows_that_end_at_twice_the_training_length_are_said(
    small_trial: Any, make_context: Any, token_caches: Path
) -> None:
    config = small_trial("base", trial={"context": 64}, eval={"length": 128})
    with pytest.raises(LeftOut, match="128 positions do not reach beyond twice trial.context=64"):
        excess_nll.measure(byte_model("gla"), report_windows(token_caches, 128, 1), config, make_context())
