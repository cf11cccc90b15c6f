"""The interpreter for this folder: its tests run in a process of their own, `make kernels-test`.

They are skipped in any other, and CI takes a skip for a failure: what the interpreter needs must not reach other tests.
"""

import os
from pathlib import Path

import pytest
import torch

from tests.models import interpreter

ON = os.environ.get("TRITON_INTERPRET") == "1"
if ON:
    # Now, before any test module imports a kernel.
    interpreter.switch_on()
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.slow)
            if not ON:
                item.add_marker(pytest.mark.skip(reason="for Triton's interpreter: make kernels-cpu, kernels-test"))


@pytest.fixture(scope="session", autouse=True)
def kernels() -> None:
    """The kernels that our scans call, imported and adapted."""
    import fla.ops.gla  # noqa: F401
    import fla.ops.rwkv6  # noqa: F401
    import mamba_ssm.ops.triton.ssd_combined  # noqa: F401

    interpreter.adapt_ranges("fla")
