import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from storage.bank.segment import HEAD_BYTES, Segment, attach

SIZE = HEAD_BYTES + 1000
OWNER = """
import sys, time
from storage.bank.segment import Segment
segment = Segment({size}, "test-segment")
print(segment.address.process, segment.address.descriptor, segment.address.secret.hex(), flush=True)
time.sleep(600)
"""


def test_what_one_side_writes_the_other_reads() -> None:
    segment = Segment(SIZE, "test-segment")
    other = attach(segment.address)
    assert other is not None
    segment.bytes[HEAD_BYTES] = 7
    other[HEAD_BYTES + 1] = 9
    assert other[HEAD_BYTES] == 7
    assert segment.bytes[HEAD_BYTES + 1] == 9


def test_new_memory_is_zero_and_has_no_name_that_could_be_left_behind() -> None:
    segment = Segment(SIZE, "test-segment")
    assert not segment.bytes[HEAD_BYTES:].any()
    assert os.readlink(f"/proc/self/fd/{segment.address.descriptor}") == "/memfd:test-segment (deleted)"
    assert os.fstat(segment.address.descriptor).st_nlink == 0


@pytest.mark.parametrize(
    "change", [{"secret": b"another secret.."}, {"size": SIZE + 1}, {"descriptor": 9999}, {"process": 2**22 + 1}]
)
def test_memory_of_somebody_else_is_not_taken_for_ours(change: dict[str, object]) -> None:
    segment = Segment(SIZE, "test-segment")
    assert attach(replace(segment.address, **change)) is None  # type: ignore[arg-type]


def test_memory_outlives_an_owner_that_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER.format(size=SIZE)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        process, descriptor, secret = owner.stdout.readline().split()
        address = replace(
            Segment(SIZE, "test-segment").address,
            process=int(process),
            descriptor=int(descriptor),
            secret=bytes.fromhex(secret),
        )
        shared = attach(address)
        assert shared is not None
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait(timeout=20)
    shared[HEAD_BYTES:] = 3  # a writer that does not know yet comes to no harm
    assert int(shared[HEAD_BYTES:].astype(np.int64).sum()) == 3 * 1000
    assert attach(address) is None
