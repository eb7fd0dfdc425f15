"""The driver's library, as far as a linker looks: the names that Triton's C files ask for, and nothing behind them."""

import subprocess

NAMES = """
cuCtxGetCurrent cuCtxGetLimit cuCtxSetCurrent cuCtxSetLimit cuDeviceGet cuDeviceGetAttribute cuDevicePrimaryCtxRetain
cuFuncGetAttribute cuFuncSetAttribute cuFuncSetCacheConfig cuGetErrorString cuLaunchKernel cuModuleGetFunction
cuModuleLoadData cuPointerGetAttribute cuPointerGetAttributes
"""


def build(name):
    """Compile it, into the working folder."""
    code = f"int {', '.join(NAMES.split())};"
    subprocess.run(["gcc", "-shared", "-o", name, "-x", "c", "-"], input=code.encode(), check=True)
