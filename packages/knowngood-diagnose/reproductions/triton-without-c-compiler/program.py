"""What Triton does before it launches a first kernel: a C file that talks to the driver is compiled and loaded."""

import json
import shutil

if shutil.which("gcc"):  # the stand-in wants a compiler too; without one Triton does not get as far as libcuda
    import libcuda

    libcuda.build("libcuda.so.1")

from triton.backends.nvidia.driver import CudaUtils

CudaUtils()
print(json.dumps({"driver.c": "compiled and loaded"}))
