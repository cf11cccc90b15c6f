"""An intervention beside the backward pass: a thread takes in the final states and draws the next initial state.

Only time differs: every call gets the arguments that it would get in line, in the same order, and never two at once.
So an intervention and its bank need not be safe for threads. Legend: B rows of a micro-batch.
"""

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from models.interface import State
from workers.interventions import Intervention

AHEAD_LIMIT = 64 * 2**20
"""Most bytes of one micro-batch's states that are drawn ahead: they are held beside those in use. Others are drawn when
they are needed."""

MicroBatch = tuple[int, np.ndarray]
"""Step, and the global numbers of the rows (B,)."""


class BackgroundIntervention:
    """Calls one intervention for one training loop."""

    def __init__(self, intervention: Intervention) -> None:
        self.intervention = intervention
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="intervention")
        self._running: Future[None] | None = None
        self._ahead: tuple[tuple[int, bytes], State | None] | None = None

    def initial_state(self, step: int, rows: np.ndarray) -> State | None:
        """See `Intervention.initial_state`; waits for the thread. Raises what `observe` met there."""
        self.settle()
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == (step, rows.tobytes()):
            return ahead[1]
        return self.intervention.initial_state(step, rows)

    def observe(self, step: int, rows: np.ndarray, final_state: State, following: MicroBatch | None) -> None:
        """Begin `Intervention.observe`, and then to draw the initial state of the micro-batch that follows, if any.

        Returns at once; an error shows at the next call.
        """
        self.settle()
        self._running = self._thread.submit(self._take_in, step, rows, final_state, following)

    def settle(self) -> None:
        """Wait until what was begun is done, and raise what it met; before anything else uses intervention or bank."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """End the thread as soon as it has done what it is doing."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _take_in(self, step: int, rows: np.ndarray, final_state: State, following: MicroBatch | None) -> None:
        self.intervention.observe(step, rows, final_state)
        if following is None or _bytes(final_state) > AHEAD_LIMIT:
            return
        next_step, next_rows = following
        state = self.intervention.initial_state(next_step, next_rows)
        self._ahead = (next_step, next_rows.tobytes()), state


def _bytes(state: State) -> int:
    return sum(part.nbytes for layer in state for part in layer.values())
