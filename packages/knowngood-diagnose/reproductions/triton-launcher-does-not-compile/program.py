"""flash-attn's rotary kernel is compiled for a GPU, V100's sm_70 unless told otherwise, as its first call would.

program.py [--sm NUMBER] [--libcuda]: with a libcuda.so that the linker finds, standing in for the driver's. The
launcher is compiled and loaded, and nothing is launched.
"""

import argparse
import json

arguments = argparse.ArgumentParser()
arguments.add_argument("--sm", type=int, default=70)
arguments.add_argument("--libcuda", action="store_true")
asked = arguments.parse_args()

if asked.libcuda:  # LIBRARY_PATH and LD_LIBRARY_PATH name this folder
    import libcuda

    libcuda.build("libcuda.so")

import triton
from flash_attn.ops.triton.rotary import rotary_kernel

pointers = {"OUT", "X", "COS", "SIN"}
constants = {"CU_SEQLENS": None, "BLOCK_K": 32, "BLOCK_M": 8, "IS_SEQLEN_OFFSETS_TENSOR": False, "IS_VARLEN": False}
constants |= {"INTERLEAVED": False, "CONJUGATE": False}
types = {name: "*fp16" if name in pointers else "i32" for name in rotary_kernel.arg_names if name not in constants}
if triton.__version__.startswith("2.0"):
    place = {name: number for number, name in enumerate(rotary_kernel.arg_names)}
    made = triton.compile(
        rotary_kernel,
        signature={place[name]: kind for name, kind in types.items()},
        constants={place[name]: value for name, value in constants.items()},
        cc=asked.sm,
    )
else:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: types.get(name, "constexpr") for name in rotary_kernel.arg_names}
    source = ASTSource(fn=rotary_kernel, signature=signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", asked.sm, 32))
target = next(line for line in made.asm["ptx"].splitlines() if line.startswith(".target"))
print(json.dumps({"triton": triton.__version__, "ptx": target, "cubin bytes": len(made.asm["cubin"])}))
