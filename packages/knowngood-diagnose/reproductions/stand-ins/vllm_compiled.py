"""Lets vLLM's module for NVIDIA's GPUs be imported where there is none: to be imported before vLLM.

vLLM imports its compiled operators there, which link the driver's library. Nothing of them is called.
"""

import sys
import types

for name in ("vllm._C", "vllm._C_stable_libtorch"):
    sys.modules[name] = types.ModuleType(name)
