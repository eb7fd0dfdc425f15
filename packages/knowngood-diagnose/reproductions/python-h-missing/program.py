"""Triton gets ready to launch a first kernel, as far as that goes without a GPU.

A kernel is compiled for V100's sm_70, which takes no C compiler; then Triton's part that talks to the driver, a C file
that it compiles against Python's headers before the first kernel is launched. Nothing is launched.
"""

import json
import shutil

if shutil.which("gcc"):  # TRITON_LIBCUDA_PATH and LD_LIBRARY_PATH name this folder
    import libcuda

    libcuda.build("libcuda.so.1")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaUtils
from triton.compiler import ASTSource


@triton.jit
def double(out, x, size: tl.constexpr):
    place = tl.program_id(0) * size + tl.arange(0, size)
    tl.store(out + place, tl.load(x + place) * 2)


signature = {"out": "*fp16", "x": "*fp16", "size": "constexpr"}
source = ASTSource(fn=double, signature=signature, constexprs={"size": 64})
made = triton.compile(source, target=GPUTarget("cuda", 70, 32))
print(f"compiled for sm_70: {len(made.asm['cubin'])} bytes")
CudaUtils()
print(json.dumps({"driver.c": "compiled and loaded"}))
