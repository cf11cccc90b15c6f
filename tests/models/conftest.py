"""One thread for the tests of this folder: their tensors are too small to share out."""

import torch

torch.set_num_threads(1)
