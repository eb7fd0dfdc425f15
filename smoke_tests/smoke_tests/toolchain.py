"""What Triton and Inductor compile with at run time, tried without a GPU: it fails in the image, not at the
first kernel.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from smoke_tests.outcomes import Failed, NotRun

SOURCES = {
    "c": """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tried", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_tried(void) { return PyModule_Create(&module); }
""",
    "c++": """
#include <Python.h>
#include <atomic>
#include <cmath>
#include <vector>
#include <omp.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tried", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_tried(void) {
    std::vector<double> values(omp_get_max_threads(), std::sqrt(2.0));
    return values.empty() ? NULL : PyModule_Create(&module);
}
""",
}
COMPILERS = {
    "c": ("CC", ("gcc", "clang", "cc"), ()),
    "c++": ("CXX", ("g++", "clang++", "c++"), ("-std=c++17", "-fopenmp")),
}


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Compile as Triton does (``c``), as Inductor does (``c++``; ``inductor`` runs it), or for a GPU (``ptx``)."""
    if check["detail"] in SOURCES:
        _compile_an_extension(check["detail"], report)
    else:
        {"inductor": _compile_a_function, "ptx": _compile_for_a_gpu}[check["detail"]](report)


def _compile_an_extension(language: str, report: dict[str, Any]) -> None:
    """Build and import an extension module, as triton/runtime/build.py does with its launcher."""
    variable, names, options = COMPILERS[language]
    compiler = os.environ.get(variable) or next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        raise Failed(f"there is no {language} compiler: none of {', '.join(names)} is on PATH, and no {variable}")
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "tried.cc" if language == "c++" else "tried.c"), Path(folder, "tried.so")
        source.write_text(SOURCES[language], encoding="utf-8")
        include = sysconfig.get_paths()["include"]
        command = [compiler, "-shared", "-fPIC", "-O1", *options, f"-I{include}", str(source), "-o", str(binary)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"{compiler} cannot build a Python extension: {done.stderr.strip()[:500]}")
        spec = importlib.util.spec_from_file_location("tried", binary)
        assert spec is not None
        importlib.util.module_from_spec(spec)
    report["figures"] = {"compiler": compiler, "include": include}


def _compile_a_function(report: dict[str, Any]) -> None:
    """Let torch.compile build a C++ kernel for the CPU and compare what it computes."""
    import torch

    states = torch.linspace(-3, 3, 1000)
    compiled = torch.compile(lambda x: (x.sin() * 2 + x.exp()).sum())(states)
    expected = (states.double().sin() * 2 + states.double().exp()).sum()
    report["errors"] = {"sum": abs(compiled.item() - expected.item()) / abs(expected.item())}
    if report["errors"]["sum"] > 1e-5:
        raise Failed(f"torch.compile computed {compiled.item()}, {expected.item()} is right")


def _compile_for_a_gpu(report: dict[str, Any]) -> None:
    """Compile the rotary kernel to machine code for sm_90 with the ptxas that triton carries; no GPU is needed."""
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError as error:
        raise NotRun(f"triton cannot be imported: {error}") from error
    from smoke_tests.rotary_kernel import rotate_rows

    signature = {"states": "*bf16", "cos": "*fp32", "sin": "*fp32", "out": "*bf16", "length": "i32", "heads": "i32"}
    parameters = ASTSource.__init__.__code__.co_varnames
    constants = {"constexprs": {"half": 32}} if "constexprs" in parameters else {"constants": {"half": 32}}
    if "constexprs" in parameters:
        signature["half"] = "constexpr"
    compiled = triton.compile(
        ASTSource(fn=rotate_rows, signature=signature, **constants), target=GPUTarget("cuda", 90, 32)
    )
    report["figures"] = {"cubin_bytes": len(compiled.asm["cubin"])}
