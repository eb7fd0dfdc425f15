"""The random state that a trainer keeps beside its checkpoint is loaded; program.py [--trusted | --allowed]."""

import json
import sys

import numpy as np
import torch

torch.save({"numpy": np.random.get_state()}, "rng_state.pth")  # noqa: NPY002 - the state that trainers save
if "--allowed" in sys.argv:
    allowed = [np._core.multiarray._reconstruct, np.ndarray, np.dtype, type(np.dtype("uint32"))]
    torch.serialization.add_safe_globals(allowed)
state = torch.load("rng_state.pth", **({"weights_only": False} if "--trusted" in sys.argv else {}))
print(json.dumps({"state of": state["numpy"][0]}))
