"""Lets transformers 4.48 and newer choose FlashAttention 2 where there is no GPU: to be imported before transformers.

torch is asked whether there is a GPU and says yes. Nothing is computed there: the kernels are stood in for too.
"""

import torch

torch.cuda.is_available = lambda: True
