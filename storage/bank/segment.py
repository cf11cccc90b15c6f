"""Memory that processes of one machine share, without a name that could be left behind.

The owner makes an anonymous file in memory (`memfd_create`) and says its process, descriptor and a secret; others open
it through /proc while the owner lives. The memory is freed when the last process that mapped it has ended, however it
ends: nothing lies in /dev/shm, and its size limit does not count. Linux only; elsewhere there is no shared memory.
"""

import mmap
import os
import secrets
from dataclasses import dataclass

import numpy as np

from storage.bank.layout import Bytes

HEAD_BYTES = 4096
"""The first page holds the secret; the rest of it is free for the user of the memory."""
_SECRET_BYTES = 16


@dataclass(frozen=True)
class Address:
    """Where another process finds a segment."""

    process: int
    descriptor: int
    size: int
    secret: bytes


class Segment:
    """The owner's side. Pages take up memory once they are written to."""

    def __init__(self, size: int, name: str) -> None:
        """Args: size: bytes, at least HEAD_BYTES. name: shown by the system's tools; need not be unique."""
        self._descriptor = os.memfd_create(name)
        os.ftruncate(self._descriptor, size)
        self.bytes: Bytes = np.frombuffer(mmap.mmap(self._descriptor, size), dtype=np.uint8)
        secret = secrets.token_bytes(_SECRET_BYTES)
        self.bytes[:_SECRET_BYTES] = np.frombuffer(secret, dtype=np.uint8)
        self.address = Address(os.getpid(), self._descriptor, size, secret)


def can_share() -> bool:
    """Whether this system has such memory."""
    return hasattr(os, "memfd_create")


def attach(address: Address) -> Bytes | None:
    """The same memory in this process, or None if it is out of reach: the owner is another machine's, or has ended."""
    try:
        descriptor = os.open(f"/proc/{address.process}/fd/{address.descriptor}", os.O_RDWR)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_size != address.size:
            return None
        shared: Bytes = np.frombuffer(mmap.mmap(descriptor, address.size), dtype=np.uint8)
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
    # A process of another container may have the same number here, and the same descriptor may be another file.
    return shared if shared[:_SECRET_BYTES].tobytes() == address.secret else None
