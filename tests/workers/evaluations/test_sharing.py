import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.evaluations.byte_models import report_windows
from workers.context import TrialContext
from workers.evaluations.sharing import dealt_order, per_window


@given(st.integers(1, 40), st.integers(1, 9))
def test_what_was_dealt_out_comes_back_in_order(windows: int, workers: int) -> None:
    shares = [share for rank in range(workers) if (share := list(range(windows))[rank::workers])]
    laid_end_to_end = np.concatenate(shares)
    assert laid_end_to_end[dealt_order([len(share) for share in shares])].tolist() == list(range(windows))


class Meeting:
    """Workers as threads of one process: gathers what each brings, as a process group does."""

    def __init__(self, world: int) -> None:
        self.values: list[Any] = [None] * world
        self.barrier = threading.Barrier(world)

    def context(self, rank: int, folder: Path) -> TrialContext:
        meeting = self

        class Here(TrialContext):
            def gather(self, value: Any) -> list[Any]:
                meeting.values[self.rank] = value
                meeting.barrier.wait()
                return list(meeting.values)

        return Here(folder=folder, cache=folder, identity="", rank=rank, world=len(self.values))


@pytest.mark.parametrize(("windows", "workers"), [(4, 1), (4, 2), (5, 3), (2, 4)])
def test_every_worker_gets_all_windows_in_their_order(
    windows: int, workers: int, tmp_path: Path, token_caches: Path
) -> None:
    chosen = report_windows(token_caches, 64, windows)
    meeting = Meeting(workers)
    found: list[dict[str, np.ndarray]] = [{} for _ in range(workers)]

    def work(rank: int) -> None:
        def first_tokens(mine: Any) -> dict[str, np.ndarray]:
            return {"tokens": np.stack([one.tokens(0, 8) for one in mine]), "twice": np.ones(len(mine)) * 2}

        found[rank] = per_window(chosen, meeting.context(rank, tmp_path), first_tokens)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in found:
        assert np.array_equal(each["tokens"], np.stack([window.tokens(0, 8) for window in chosen]))
        assert each["twice"].tolist() == [2.0] * windows
