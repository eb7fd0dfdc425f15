"""Whether torch's SDPA may take cuDNN's kernels, before and after vLLM's module for NVIDIA's GPUs is imported.

Where there is a GPU, `from vllm import LLM` or `SamplingParams` imports that module; here it is imported by its name.
"""

import json
import sys

import torch
import vllm_compiled  # noqa: F401 - it stands in for what wants a GPU's driver

before = torch.backends.cuda.cudnn_sdp_enabled()
import vllm.platforms.cuda  # noqa: F401

if "--turn-on" in sys.argv:
    torch.backends.cuda.enable_cudnn_sdp(True)
after = torch.backends.cuda.cudnn_sdp_enabled()
if after != before:
    raise SystemExit(f"cudnn_sdp_enabled() was {before} before vLLM was imported, and is {after} after it")
print(json.dumps({"before": before, "after": after}))
