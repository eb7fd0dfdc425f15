"""The dev variant of the default cell builds a CUDA extension of torch for the cell's GPU, on a machine without one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from knowngood.wheels import wheel_packing

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("engine")]

SETUP = """\
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
setup(name="twice", ext_modules=[CUDAExtension("twice", ["bind.cpp", "twice.cu"], libraries=["cublas"])],
      cmdclass={"build_ext": BuildExtension})
"""
KERNEL = """\
#include <ATen/cuda/CUDAContext.h>
#include <cublas_v2.h>
#include <torch/extension.h>
__global__ void double_each(float* values, long size) {
  long place = blockIdx.x * long(blockDim.x) + threadIdx.x;
  if (place < size) values[place] *= 2;
}
torch::Tensor twice(torch::Tensor values) {
  auto result = values.clone();
  if (!result.is_cuda()) return result * 2;
  double_each<<<(result.numel() + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      result.data_ptr<float>(), result.numel());
  return result;
}
"""
BIND = """\
#include <torch/extension.h>
torch::Tensor twice(torch::Tensor values);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("twice", &twice); }
"""
PLAIN = """\
#include <cstdio>
int main() { int version = 0; cudaRuntimeGetVersion(&version); std::printf("%d\\n", version); }
"""


def run(folder, *words):
    """Return the finished process of a program in the dev variant."""
    argv = [sys.executable, "-m", "knowngood", "run", "--dev", "default", "--", *words]
    result = subprocess.run(
        argv, cwd=folder, env=os.environ.copy(), capture_output=True, text=True, timeout=3000, check=False
    )
    assert result.returncode == 0, result.stderr + result.stdout
    return result


def test_an_extension_is_compiled_for_the_cells_gpu(tmp_path):
    for name, text in (("setup.py", SETUP), ("twice.cu", KERNEL), ("bind.cpp", BIND), ("plain.cu", PLAIN)):
        (tmp_path / name).write_text(text)
    result = run(tmp_path, "python", "setup.py", "build_ext", "--inplace")
    assert "arch=compute_90,code=sm_90" in result.stdout + result.stderr
    use = "import torch, twice; print(twice.twice(torch.ones(2)).tolist(), torch.__version__)"
    values, version = run(tmp_path, "python", "-c", use).stdout.rsplit(maxsplit=1)
    assert values == "[2.0, 2.0]"
    assert version.startswith("2.11.0")
    assert wheel_packing.list_architectures(wheel_packing.read_folder_code(tmp_path)) == ["90"]
    assert run(tmp_path, "sh", "-c", "nvcc plain.cu -o plain && ./plain").stdout.strip().startswith("130")
