from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from models.interface import RecurrentLanguageModel
from models.registry import ARCHITECTURES, dims, model_of
from tests.workers.evaluations.byte_models import byte_model, forgetful_model, report_windows
from workers.evaluations import effective_remembrance as remembrance
from workers.evaluations.diagnostics import LeftOut
from workers.evaluations.distances import DISTANCES, probabilities

TOTAL = 64


def texts(rows: int = 3, total: int = TOTAL, vocab_size: int = 256) -> Tensor:
    return torch.randint(vocab_size, (rows, total), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def by_loop(model: RecurrentLanguageModel, tokens_NT: Tensor, grid: np.ndarray) -> dict[str, np.ndarray]:
    """The definition: a pass of its own for each suffix of each text."""
    found: dict[str, list[list[float]]] = {name: [] for name in DISTANCES}
    for tokens_T in tokens_NT:
        whole = probabilities(model.head(model(tokens_T[None])[0][0, -1]))
        suffixes = [probabilities(model.head(model(tokens_T[None, t:])[0][0, -1])) for t in grid.tolist()]
        for name, distance in DISTANCES.items():
            found[name].append([float(distance(whole, one)) for one in suffixes])
    return {name: np.asarray(values) for name, values in found.items()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_growing_batch_is_a_loop_over_suffixes(architecture: str) -> None:
    model, grid = byte_model(architecture, torch.float32), remembrance.suffix_starts(TOTAL)
    found = remembrance.distances_of_texts(model, texts(), grid)
    right = by_loop(model, texts(), grid)
    assert found.keys() == right.keys() == DISTANCES.keys()
    for name in found:
        assert found[name].shape == (3, len(grid))
        np.testing.assert_allclose(found[name], right[name], atol=1e-5, rtol=0)
    assert found["total_variation"][:, -1].min() > 0.01, "a text of one token must differ, or nothing was compared"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_two_rows_at_zero_agree(architecture: str) -> None:
    found = remembrance.distances_of_texts(byte_model(architecture, torch.float32), texts(), np.array([0, 9]))
    assert found["total_variation"][:, 0].max() <= 1e-6 < found["total_variation"][:, 1].min()


def test_a_forgotten_prefix_sways_nothing() -> None:
    grid = remembrance.suffix_starts(TOTAL)
    found = remembrance.distances_of_texts(forgetful_model(), texts(), grid)["total_variation"]
    assert found[:, grid <= TOTAL - 16].max() < 1e-12
    assert found[:, -1].min() > 1e-3


@pytest.mark.parametrize("tokens_at_once", [1, 20, 100])
def test_pieces_do_not_change_the_result(tokens_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, grid = byte_model("mamba2"), np.array([0, 1, 20, 63])
    whole = remembrance.distances_of_texts(model, texts(), grid)
    monkeypatch.setattr(remembrance, "TOKENS_AT_ONCE", tokens_at_once)
    pieces = remembrance.distances_of_texts(model, texts(), grid)
    for name in whole:
        np.testing.assert_allclose(pieces[name], whole[name], atol=1e-7, rtol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_that_only_pad_the_vocabulary_take_no_probability(architecture: str) -> None:
    padded = model_of(
        replace(dims(architecture, "tiny", vocab_size=19), pad_vocab_size_multiple=16), seed=0, kernel="chunked"
    )
    before = remembrance.distances_of_texts(padded, texts(vocab_size=19), np.array([0, 5, 60]))
    assert remembrance.last_logits(padded, texts(vocab_size=19), [0, 3]).shape == (2, 3, 19)
    matrices = [value for value in padded.state_dict().values() if value.shape[:1] == (32,) and value.ndim == 2]
    assert matrices
    for matrix in matrices:
        matrix[19:] = 100.0
    after = remembrance.distances_of_texts(padded, texts(vocab_size=19), np.array([0, 5, 60]))
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_texts_go_together_as_far_as_their_states_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    model = byte_model("mamba2", torch.float32)
    bytes_of_a_text = model.dims.state_bytes() * 10
    for room, texts_together in ((bytes_of_a_text - 1, 1), (bytes_of_a_text * 3, 3)):
        monkeypatch.setattr(remembrance, "STATE_BYTES_AT_ONCE", room)
        assert remembrance.texts_at_once(model, 9) == texts_together


@given(st.integers(1, 2**20))
def test_the_grid_starts_at_zero_and_ends_with_a_suffix_of_one_token(total: int) -> None:
    grid = remembrance.suffix_starts(total)
    assert grid[0] == 0 and grid[-1] == total - 1 and (np.diff(grid) > 0).all() and len(grid) <= 60
    assert total // 2 in grid


def test_the_grid_of_the_paper_is_dense_near_its_ends() -> None:
    grid = remembrance.suffix_starts(8192).tolist()
    assert grid[:4] == [0, 64, 256, 512] and grid[-4:] == [8184, 8188, 8190, 8191]


@given(st.integers(1, 4096), st.integers(1, 64))
def test_texts_lie_inside_the_window_without_overlap(total: int, more: int) -> None:
    length = total + more * 100
    starts = remembrance.text_starts(length, total)
    assert starts[0] == 0 and starts[-1] + total <= length
    assert all(after - before >= total for before, after in zip(starts[:-1], starts[1:], strict=True))


def test_the_table_holds_means_over_texts_and_windows(
    small_trial: Any, make_context: Any, token_caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_trial("base", trial={"context": 8}, eval={"length": 128, "remembrance_factor": 5})
    windows, model = report_windows(token_caches, 128, 3), byte_model("gla", torch.float32)
    monkeypatch.setattr(remembrance, "STATE_BYTES_AT_ONCE", model.dims.state_bytes() * 200)
    table, by_window = remembrance.measure(model, windows, config, make_context())
    grid = remembrance.suffix_starts(40)
    assert table.about == {"total": 40, "train_length": 8, "windows": 3, "texts": 2}
    assert table.position.tolist() == grid.tolist() and table.is_by_position and not by_window.is_by_position
    right = {name: np.zeros(len(grid)) for name in DISTANCES}
    for window in windows:
        both = torch.from_numpy(np.stack([window.tokens(0, 40), window.tokens(64, 104)]))
        found = by_loop(model, both, grid)
        rows = by_window.columns["document"] == window.document_id
        for name in DISTANCES:
            np.testing.assert_allclose(by_window.columns[name][rows], found[name].mean(axis=0), atol=1e-5)
            right[name] += found[name].mean(axis=0) / 3
    for name in DISTANCES:
        np.testing.assert_allclose(table.columns[name], right[name], atol=1e-5)
        assert table.columns[name].dtype == np.float64
    assert table.summary == {"total_variation_at_half": table.columns["total_variation"][grid.tolist().index(20)]}


def test_a_window_shorter_than_the_text_is_said(small_trial: Any, make_context: Any, token_caches: Path) -> None:
    config = small_trial("base", trial={"context": 40}, eval={"length": 128})
    with pytest.raises(
        LeftOut, match="128 positions are fewer than the 160 tokens that it reads: eval.remembrance_factor=4 times"
    ):
        remembrance.measure(byte_model("gla"), report_windows(token_caches, 128, 1), config, make_context())


def test_rows_that_pad_the_vocabulary_take_no_part_in_distances() -> None:
    plain = model_of(dims("mamba2", "tiny"), seed=0)
    padded = model_of(plain.dims, seed=0)
    with torch.no_grad():
        dict(padded.named_parameters())[plain.dims.EMBEDDING][plain.vocab_size :] = 9.0
    tokens_NT = torch.randint(plain.vocab_size, (2, 16), generator=torch.Generator().manual_seed(0))
    grid = np.asarray([0, 3, 8])
    found, right = (remembrance.distances_of_texts(model, tokens_NT, grid) for model in (padded, plain))
    assert plain.dims.vocab_rows > plain.vocab_size
    assert all(np.array_equal(found[name], right[name]) for name in right)
