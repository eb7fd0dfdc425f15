"""Run flash-attn 2's kernels for sm_80 on a newer GPU, from PTX, which the driver compiles when it loads it.

    PYTHONPATH=src python3 scripts/ptx_kernels.py build SOURCE SITE JOBS     the extension, from flash-attn's sources
    PYTHONPATH=SITE python3 scripts/ptx_kernels.py warm                      let the driver compile what the suite calls
    PYTHONPATH=src python3 scripts/ptx_kernels.py run OUT PREDICTIONS SITE   the suite's quick part, with its evidence

It shows the kernels' logic and no GPU of their own, so the evidence is that of a cell for sm_80 on another GPU, which
raises no tier, and says what GPU code the extension has. SOURCE is the unpacked sdist; torch's headers and nvcc are the
machine's own. SITE has the package's modules, and gets the extension. Of the kernels those for head dimension 64 are
compiled, which the suite's models have; a call of another one ends the program.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

NAME = "flash_attn_2_cuda"
ENVIRONMENT = "cu130-torch2.11.0-tf5.17.0-fa2.8.3.post2-triton3.6.0-py312"


def build(source: str, site: str, jobs: str) -> None:
    """Compile kernels to PTX of compute_80 and link the extension for this Python; then say which GPU code it has.

    The options are those that setup.py of flash-attn gives, but for the architecture. Kernels that split keys and
    values among blocks are left out: they are for decoding.
    """
    from torch.utils import cpp_extension  # type: ignore[import-not-found,unused-ignore]

    own = Path(source, "csrc/flash_attn")
    folders = [own, own / "src", Path(source, "csrc/cutlass/include"), *cpp_extension.include_paths("cuda")]
    common = ["-O3", "-std=c++17", "-DTORCH_API_INCLUDE_EXTENSION_H", f"-DTORCH_EXTENSION_NAME={NAME}"]
    common += [f"-I{path}" for path in (*folders, sysconfig.get_path("include"))]
    types = ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
    device = ["-Xcompiler", "-fPIC", "--expt-relaxed-constexpr", "--expt-extended-lambda", "--use_fast_math"]
    device += [*(f"-U__CUDA_NO_{name}__" for name in types), "-gencode", "arch=compute_80,code=compute_80"]

    def compile_one(path: Path) -> Path:
        compiler = ["nvcc", *device] if path.suffix == ".cu" else ["g++", "-fPIC"]
        target = path.with_suffix(".o")
        if not target.exists():
            part = path.with_suffix(".part.o")
            subprocess.run([*compiler, *common, "-c", str(path), "-o", str(part)], check=True)
            part.rename(target)
        return target

    with ThreadPoolExecutor(int(jobs)) as pool:
        kernels = sorted(own.glob("src/flash_[bf]wd_hdim64_*.cu"))
        objects = list(pool.map(compile_one, [own / "flash_api.cpp", *kernels]))
    objects.append(stand_in_for_others(objects[0]))
    libraries = [f"-L{path}" for path in cpp_extension.library_paths("cuda")]
    libraries += ["-lc10", "-lc10_cuda", "-ltorch", "-ltorch_cpu", "-ltorch_cuda", "-ltorch_python", "-lcudart"]
    extension = Path(site, NAME + sysconfig.get_config_var("EXT_SUFFIX"))
    subprocess.run(["g++", "-shared", "-s", *objects, *libraries, "-o", extension], check=True)
    print(len(objects), "objects,", extension.stat().st_size, "bytes,", find_gpu_code(site))


def stand_in_for_others(caller: Path) -> Path:
    """Return an object with a weak function, an illegal instruction, for each kernel's launcher that `caller` calls."""
    listed = subprocess.run(["nm", "-u", "-j", str(caller)], capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split() if "run_mha_" in name]
    source = caller.with_name("others.s")
    source.write_text(".text\n" + "".join(f".weak {name}\n{name}:\nud2\n" for name in names))
    subprocess.run(["g++", "-c", source, "-o", source.with_suffix(".o")], check=True)
    return source.with_suffix(".o")


def find_gpu_code(site: str) -> str:
    """Return the architectures of an extension's machine code and PTX, in words."""
    from knowngood.index.gpu_code import describe_gpu_code
    from knowngood.wheels.wheel_packing import read_folder_code

    codes = {describe_gpu_code(code) for library in read_folder_code(Path(site)) for code in library.fatbins}
    return ", ".join(sorted(codes))


def warm() -> None:
    """Run each kernel that a small Qwen2 needs once, several at a time: the driver compiles on one core for each."""
    cases = [
        f"{dtype} {causal} {backward}" for dtype in ("bfloat16", "float16") for causal in (1, 0) for backward in (0, 1)
    ]
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(run_one_kernel, cases))
    print(dict(zip(cases, done, strict=True)))


def run_one_kernel(case: str) -> int:
    """Run the kernels of a case in a process of their own and return its exit status."""
    return subprocess.run([sys.executable, "-c", ONE_KERNEL, *case.split()], check=False).returncode


ONE_KERNEL = """
import sys, time, torch
from flash_attn import flash_attn_func, flash_attn_varlen_func
dtype, causal, backward = getattr(torch, sys.argv[1]), bool(int(sys.argv[2])), bool(int(sys.argv[3]))
start = time.monotonic()
options = {"device": "cuda", "dtype": dtype, "requires_grad": backward}
query, key, value = (torch.randn(64, heads, 64, **options) for heads in (4, 2, 2))
ends = torch.tensor([0, 24, 64], device="cuda", dtype=torch.int32)
whole = flash_attn_func(query[None], key[None], value[None], causal=causal)
packed = flash_attn_varlen_func(query, key, value, ends, ends, 40, 40, causal=causal)
if backward:
    (whole.sum() + packed.sum()).backward()
torch.cuda.synchronize()
print(sys.argv[1:], round(time.monotonic() - start), "s", flush=True)
"""


def run(out: str, predictions: str, site: str) -> None:
    """Run the suite's quick part and keep its evidence, marked as that of PTX on another GPU."""
    from knowngood.core.cell import parse_cell
    from knowngood.evidence import run_evidence
    from knowngood.smoke import suite_command, suite_run

    cell = f"sm90-{ENVIRONMENT}"
    done = suite_run.run_in_environment(
        parse_cell(cell),
        Path(__file__).resolve().parents[3] / "smoke_tests",
        suite_command.SuiteOptions(gpus=True, quick=True, seconds=400),
        predictions=json.loads(Path(predictions).read_text())[cell],
        log=Path(out, "ptx.log"),
        notify=print,
    )
    node = {**done.node, "flash_attn_gpu_code": find_gpu_code(site)}
    marked = replace(done, cell=f"sm80-{ENVIRONMENT}", node=node)
    print(run_evidence.store_evidence(marked, Path(out)), done.report["seconds"], done.report["verdict"])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["build", source, site, jobs]:
            build(source, site, jobs)
        case ["warm"]:
            warm()
        case ["run", out, predictions, site]:
            run(out, predictions, site)
        case _:
            sys.exit(__doc__)
