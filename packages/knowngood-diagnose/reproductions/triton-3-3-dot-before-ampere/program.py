"""A Triton kernel of one matrix product is compiled for a GPU, V100's sm_70 unless told otherwise; nothing is launched.

program.py [--sm NUMBER] [--type fp16|bf16|fp32] [--tensor-cores]: with the last it fails when the product is not the
tensor cores' (no mma in the PTX).
"""

import argparse
import json

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

arguments = argparse.ArgumentParser()
arguments.add_argument("--sm", type=int, default=70)
arguments.add_argument("--type", default="fp16")
arguments.add_argument("--tensor-cores", action="store_true")
asked = arguments.parse_args()


@triton.jit
def product(out, x, size: tl.constexpr):
    row = tl.arange(0, size)
    place = row[:, None] * size + row[None, :]
    loaded = tl.load(x + place)
    tl.store(out + place, tl.dot(loaded, loaded))


signature = {"out": "*fp32", "x": f"*{asked.type}"}
if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 3):
    source = ASTSource(fn=product, signature=signature, constants={"size": 64})
else:
    source = ASTSource(fn=product, signature={**signature, "size": "constexpr"}, constexprs={"size": 64})
made = triton.compile(source, target=GPUTarget("cuda", asked.sm, 32))
code = made.asm["ptx"]
target = next(line for line in code.splitlines() if line.startswith(".target"))
seen = {"ptx": target, "cubin bytes": len(made.asm["cubin"]), "mma": code.count("mma."), "fma": code.count("fma.rn")}
print(json.dumps(seen))
if asked.tensor_cores and not seen["mma"]:
    raise SystemExit(f"triton {triton.__version__} multiplies {asked.type} on sm_{asked.sm} without tensor cores")
