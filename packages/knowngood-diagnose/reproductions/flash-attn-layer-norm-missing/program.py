"""flash-attn's fused norm is imported, as model code does at its top; with --triton, its Triton kernel for that."""

import json
import sys

if "--triton" in sys.argv:
    from flash_attn.ops.triton.layer_norm import rms_norm_fn as norm
else:
    from flash_attn.ops.layer_norm import dropout_add_layer_norm as norm
print(json.dumps({"imported": f"{norm.__module__}.{norm.__name__}"}))
