"""Effective Remembrance as one growing batch over one stream, beside a loop with one pass per suffix.

Both find the same logits of the last position, checked here, on the demo models and one thread. They take turns within
one run, and the table gives the median of the ratios of their CPU times, which other work on the machine disturbs
little. The loop forms the head of the last position alone too. A trial's diagnostic reads four texts by default.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.markdown import header, table
from models.interface import RecurrentLanguageModel
from models.registry import ARCHITECTURES, build_model
from models.settings import ModelSettings
from workers.evaluations.effective_remembrance import last_logits, suffix_starts

LENGTHS = (256, 1024)
TEXTS = (1, 4)
TURNS = 5


@torch.no_grad()
def loop_logits(model: RecurrentLanguageModel, tokens_NT: Tensor, starts: list[int]) -> Tensor:
    """Logits (R, N, V) after the texts' last token, by a pass of its own for each text and start."""
    rows = [[model.head(model(text_T[None, start:])[0][0, -1]) for text_T in tokens_NT] for start in starts]
    return torch.stack([torch.stack(row) for row in rows])


def timed(action: Callable[[], Tensor]) -> tuple[float, Tensor]:
    """CPU seconds of this thread, and what came out."""
    started = time.thread_time()
    found = action()
    return time.thread_time() - started, found


def compare(architecture: str, total: int, texts: int) -> list[str]:
    """A row of the table."""
    model = build_model(ModelSettings(architecture=architecture), 256, seed=0).eval()
    tokens_NT = torch.randint(256, (texts, total), generator=torch.Generator().manual_seed(0))
    starts = [0, *suffix_starts(total).tolist()]
    last_logits(model, tokens_NT[:, :64], [0])
    loops, batches = [], []
    for _ in range(TURNS):
        seconds, right = timed(lambda: loop_logits(model, tokens_NT, starts))
        loops.append(seconds)
        seconds, found = timed(lambda: last_logits(model, tokens_NT, starts))
        batches.append(seconds)
        torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-4)
    ratio = statistics.median(loop / batch for loop, batch in zip(loops, batches, strict=True))
    seconds_of = [f"{statistics.median(each):.2f} s" for each in (loops, batches)]
    return [architecture, str(total), str(texts), str(len(starts)), *seconds_of, f"{ratio:.1f}"]


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(header("Effective Remembrance: one growing batch beside a loop over suffixes"))
    cells = [(name, total, texts) for name in ARCHITECTURES for total in LENGTHS for texts in TEXTS]
    columns = ["architecture", "T", "texts", "passes of the loop per text", "loop", "growing batch", "loop / batch"]
    print(table(columns, [compare(*cell) for cell in cells]))
    print(f"Demo models, untrained, one thread; medians of {TURNS} turns, CPU seconds.")


if __name__ == "__main__":
    main()
