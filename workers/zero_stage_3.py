"""ZeRO stage 3 for a model whose parameters have two dtypes: bf16, and fp32 for what decays are made of.

DeepSpeed 0.19 moves the shares of all weights into one buffer and insists that they have one dtype. Nothing after that
needs it: subgroups, gathers and the step go by the dtype of their own parameters, and a subgroup that is fp32 already
is its own master copy. So one buffer for each dtype is all it takes. A test holds the result to that of stage 2, which
knows two dtypes by itself.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from deepspeed.runtime.zero import stage3
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Stage3Optimizer
from torch import Tensor


@contextmanager
def buffer_for_each_dtype() -> Iterator[None]:
    """While an engine is built: the shares of its weights lie in a buffer for each dtype instead of one for all.

    Every parameter group that it is given must have one dtype.
    """
    move_into_one, cut_one = stage3.defragment, Stage3Optimizer._set_fp16_partitioned_groups_flat
    buffers: dict[torch.dtype, Tensor] = {}

    def move(shares: Sequence[Tensor]) -> Tensor:
        for dtype in dict.fromkeys(share.dtype for share in shares):
            buffers[dtype] = move_into_one([share for share in shares if share.dtype == dtype])
        # The optimiser keeps one of them, to move weights off the device: no setting of a trial asks for that.
        return buffers[shares[0].dtype]

    def cut(optimizer: Any) -> None:
        used = dict.fromkeys(buffers, 0)
        for parameters in optimizer.fp16_groups:
            dtype, size = parameters[0].ds_tensor.dtype, sum(one.partition_numel() for one in parameters)
            optimizer.fp16_partitioned_groups_flat.append(buffers[dtype].narrow(0, used[dtype], size))
            used[dtype] += size

    stage3.defragment, Stage3Optimizer._set_fp16_partitioned_groups_flat = move, cut
    try:
        yield
    finally:
        stage3.defragment, Stage3Optimizer._set_fp16_partitioned_groups_flat = move_into_one, cut_one
