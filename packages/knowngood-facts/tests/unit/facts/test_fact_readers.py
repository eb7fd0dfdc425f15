import json
import shutil
import subprocess

import pytest
from packaging.version import Version

import harvest_registry
from knowngood.index.artefact import PublishedFile, UnreadableError
from knowngood.index.releases import IndexedRelease, choose_wheel_by
from knowngood_facts.facts import (
    driver_reader,
    flash_attn_reader,
    framework_reader,
    kernel_reader,
    python_source,
    torch_reader,
)
from knowngood_facts.facts.fact_reader import ReleaseReading


class Memory:
    """An artefact made of a dictionary."""

    def __init__(self, members, name="p-1-py3-none-any.whl"):
        self.content = {path: text.encode() if isinstance(text, str) else text for path, text in members.items()}
        self.file = PublishedFile(name=name, url="", sha256="", version=Version("1"), yanked=False)
        self.size = 7
        self.members = {path: len(content) for path, content in self.content.items()}

    def read(self, member):
        return self.content[member]

    def stream(self, member):
        yield self.content[member]

    def derived(self, _, compute):
        return json.loads(json.dumps(compute()))

    def close(self):
        pass


def tree(text):
    return python_source.parse_python(text, "text")


SETUP = """
def cuda_archs():
    return os.getenv("FLASH_ATTN_CUDA_ARCHS", "80;90;100").split(";")
if bare_metal_version < Version("11.7"):
    raise RuntimeError("too old")
if "80" in cuda_archs():
    cc_flag.append("arch=compute_80,code=sm_80")
if CUDA_HOME is not None:
    if bare_metal_version >= Version("11.8") and "90" in cuda_archs():
        cc_flag.append("arch=compute_90,code=sm_90")
    if bare_metal_version >= Version("12.8"):
        cc_flag.append("arch=compute_100,code=sm_100")
        cc_flag.append("arch=compute_120,code=compute_120")
setup(name=PACKAGE, python_requires=">=3.9", install_requires=["torch", "einops"])
"""


FLASH_API = """
// TORCH_CHECK(is_sm75, "FlashAttention only supports Turing GPUs or newer.");
TORCH_CHECK(is_sm90 || is_sm8x, "FlashAttention only supports Ampere GPUs or newer.");
TORCH_CHECK(q_dtype == torch::kFloat16 || q_dtype == torch::kBFloat16, "x");
TORCH_CHECK(head_size_og <= 256, "FlashAttention forward only supports head dimension at most 256");
TORCH_CHECK(is_sm80 || is_sm90, "FlashAttention backward for head dim > 192 with dropout requires A100/A800");
"""


def test_flash_attn_sdist():
    artefact = Memory(
        {
            "setup.py": SETUP,
            "csrc/layer_norm/setup.py": "",
            "csrc/flash_attn/flash.h": "",
            "csrc/flash_attn/flash_api.cpp": FLASH_API,
            "flash_attn/__init__.py": "from flash_attn.flash_attn_interface import f",
            "flash_attn/flash_attn_interface.py": "import torch, flash_attn_2_cuda\ndef f(q, k=None): return 1, 2\n",
            "flash_attn/ops/__init__.py": "",
            "flash_attn/ops/rms_norm.py": "import dropout_layer_norm\n",
            "flash_attn/ops/triton/rotary.py": "import triton\nimport triton.language as tl\n",
            "flash_attn/layers/rotary.py": "from einops import rearrange\nfrom flash_attn.ops.triton.rotary import x\n",
            "flash_attn/broken.py": "def (",
        },
        name="flash_attn-2.8.3.tar.gz",
    )
    reading = ReleaseReading()
    flash_attn_reader.read_flash_attn(artefact, None, reading)
    assert reading.unknown == {}
    assert reading.facts == {
        "requires_python": ">=3.9",
        "requires": ["torch", "einops"],
        "cuda_minimum": "11.7",
        "sass": {"80": "11.7", "90": "11.8", "100": "12.8"},
        "ptx": {"120": "12.8"},
        "newer_than_sm90": False,
        "head_dim_maximum": 256,
        "backward_needs_sm80_or_sm90": "head dim > 192 with dropout",
        "dtypes": ["bfloat16", "float16"],
        "extensions": ["layer_norm"],
        "functions": {"flash_attn.flash_attn_interface.f": ["(q, k=None)", [2]]},
        "needs": {
            "flash_attn": ["flash_attn_2_cuda"],
            "flash_attn.layers.rotary": ["einops", "triton"],
            "flash_attn.ops.rms_norm": ["dropout_layer_norm"],
            "flash_attn.ops.triton.rotary": ["triton"],
        },
    }


def test_needs_follows_cycles_and_relative_imports():
    artefact = Memory(
        {
            "p/__init__.py": "",
            "p/a.py": "from . import b\n",
            "p/b.py": "from .a import x\nimport foreign\ntry:\n    import guarded\nexcept ImportError: pass\n",
        }
    )
    assert flash_attn_reader.find_needed_modules(artefact, "p") == {"p": [], "p.a": ["foreign"], "p.b": ["foreign"]}


def test_needs_names_modules_that_the_artefact_lacks():
    artefact = Memory(
        {
            "p/__init__.py": "",
            "p/a.py": "from p.gone import x\nfrom p import name\nimport p.space.b\n",
            "p/space/b.py": "",
        }
    )
    assert flash_attn_reader.find_needed_modules(artefact, "p") == {"p": [], "p.a": ["p.gone"]}


IMPORTS = """
KERNELS_MIN_VERSION = "0.9.0"
def is_torch_available():
    return version.parse(v) >= version.parse("2.6.0")
def is_torch_sdpa_available():
    if is_torch_mlu_available():
        return parse(v) >= version.parse("2.1.0")
    return version.parse(v) >= version.parse("2.1.1")
def is_flash_attn_2_available():
    if not _is_package_available("flash_attn"):
        return False
    if torch.version.cuda:
        return version.parse(m("flash_attn")) >= version.parse("2.1.0")
    return version.parse(m("flash_attn")) >= version.parse("2.0.4")
def is_flash_attn_3_available():
    return _is_package_available("flash_attn_interface")[0]
"""


def test_transformers_demands():
    assert framework_reader.find_demands(tree(IMPORTS)) == {
        "torch_enforced": "2.6.0",
        "sdpa_torch": "2.1.1",
        "flash_attn_minimum": "2.1.0",
    }
    assert framework_reader.find_minimums(tree(IMPORTS)) == {"kernels": "0.9.0"}


def test_transformers_that_enforced_torch_at_module_level():
    text = 'if USE_TORCH:\n    _torch_available = version.parse(_torch_version) >= version.parse("2.1.0")\n'
    assert framework_reader.find_demands(tree(text)) == {"torch_enforced": "2.1.0"}
    assert framework_reader.find_demands(tree("")) == {}


def test_transformers_attention():
    modeling = tree('X = {"flash_attention_2": f, "sdpa": g}\nif a == "eager": "use flash_attention_3 instead"\n')
    assert framework_reader.find_implementations(modeling) == ["eager", "flash_attention_2", "sdpa"]
    with pytest.raises(UnreadableError):
        framework_reader.find_implementations(tree("x = 1"))


@pytest.mark.parametrize(
    ("model", "has"),
    [
        ('QWEN2_ATTENTION_CLASSES = {"eager": A, "sdpa": B}', ["eager", "sdpa"]),
        ("class M:\n    _supports_flash_attn = True\n    _supports_sdpa = False\n", ["eager", "flash_attention_2"]),
        ("class M:\n    _supports_flex_attn = True\n", ["eager"]),
    ],
)
def test_qwen2_attention(model, has):
    assert framework_reader.find_qwen2_attention(tree(model), ["eager", "sdpa", "flash_attention_2"]) == has


def test_transformers_min_majors():
    table = 'FLASH_ATTENTION_COMPATIBILITY_MATRIX = {2: {"x": 1}, 3: {"cuda_min_major_version": 8}}'
    assert framework_reader.find_min_majors(tree(table)) == {"3": 8}
    assert framework_reader.find_min_majors(tree("")) is None


WINDOW = """
class FlashAttentionUtils:
    version_required = PkgVersion("2.1.1")
    version_required_blackwell = PkgVersion("2.7.3")
    max_version = PkgVersion("2.8.4")
    def ok(version): return minimum_version <= version {} FlashAttentionUtils.max_version
"""


@pytest.mark.parametrize(("operator", "included"), [("<", False), ("<=", True)])
def test_transformer_engine_window(operator, included):
    assert kernel_reader.find_flash_attn_window([tree(WINDOW.format(operator))]) == {
        "flash_attn_minimum": "2.1.1",
        "flash_attn_minimum_blackwell": "2.7.3",
        "flash_attn_maximum": "2.8.4",
        "flash_attn_maximum_included": included,
    }


def test_transformer_engine_later_assignments_do_not_count():
    text = '_flash_attn_max_version = PkgVersion("2.6.3")\ndef f():\n    _flash_attn_max_version = PkgVersion("2.1")\n'
    assert kernel_reader.find_flash_attn_window([tree(text)])["flash_attn_maximum"] == "2.6.3"


ASSERTED = """
_flash_attn_version = PkgVersion(get_pkg_version("flash-attn"))
class FlashAttention(torch.nn.Module):
    def __init__(self):
        assert _flash_attn_version <= _flash_attn_max_version, "maximum"
"""
GUARDED = """
try:
    _flash_attn_version = PkgVersion(get_pkg_version("flash-attn"))
except PackageNotFoundError:
    pass
class FlashAttention(torch.nn.Module):
    def __init__(self):
        if _flash_attn_is_installed:
            assert _flash_attn_version <= _flash_attn_max_version, "maximum"
"""


@pytest.mark.parametrize(("text", "expected"), [(ASSERTED, True), (GUARDED, False), ("", False)])
def test_transformer_engine_that_cannot_do_without_a_fitting_flash_attn(text, expected):
    assert kernel_reader.imports_flash_attn(tree(text)) is expected
    assert kernel_reader.asserts_flash_attn(tree(text)) is expected


def test_flash_attn_4_takes_the_first_assertion_about_the_gpu():
    text = """
def _flash_attn_fwd(q):
    assert q.dtype in [a, b]
    assert arch // 10 in [8, 9], "no"
    assert arch // 10 in [9], "less"
"""
    assert flash_attn_reader.find_accepted_majors(tree(text), "_flash_attn_fwd") == [8, 9]
    with pytest.raises(UnreadableError, match="no _flash_attn_bwd"):
        flash_attn_reader.find_accepted_majors(tree(text), "_flash_attn_bwd")


def test_xtuner_model_minimums():
    text = "LOWEST_TRANSFORMERS_VERSION = dict(Qwen2ForCausalLM=digit_version('4.39'))"
    assert framework_reader.find_model_minimums(tree(text)) == {"qwen2": "4.39"}
    assert framework_reader.find_model_minimums(tree("")) is None


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Qwen2MoeForCausalLM", "qwen2-moe"),
        ("InternLM2ForCausalLM", "internlm2"),
        ("DeepseekV2ForCausalLM", "deepseek-v2"),
        ("qwen2_moe", "qwen2-moe"),  # as 0.1.19 has them
    ],
)
def test_xtuner_models_are_named_by_their_type(name, model):
    text = f"LOWEST_TRANSFORMERS_VERSION = dict({name}=digit_version('4.40'))"
    assert framework_reader.find_model_minimums(tree(text)) == {model: "4.40"}


def test_triton_assembler_is_found_across_pieces():
    artefact = Memory({"triton/bin/ptxas": b""})
    artefact.stream = lambda _: iter([b"\0" * 9 + b"release 12.8, V1", b"2.8.93\0"])
    assert kernel_reader.find_assembler_release(artefact, "triton/bin/ptxas") == "12.8.93"
    artefact.stream = lambda _: iter([b"nothing"])
    with pytest.raises(UnreadableError):
        kernel_reader.find_assembler_release(artefact, "triton/bin/ptxas")


@pytest.mark.parametrize(
    ("text", "name"),
    [("os.path.join(path, 'libcuda.so')", "libcuda.so"), ('if "libcuda.so.1" in line', "libcuda.so.1"), ("", None)],
)
def test_triton_libcuda(text, name):
    assert kernel_reader.find_launcher_libcuda([text]) == name


def test_drivers():
    rust = """
static LINUX_CUDA_DRIVERS: LazyLock<[(TorchBackend, Version); 3]> = LazyLock::new(|| {
    [
        (TorchBackend::Cu130, Version::new([580])),
        (TorchBackend::Cu118, Version::new([450, 80, 2])),
        (TorchBackend::Cu102, Version::new([440, 33])),
    ]
});
static WINDOWS: (TorchBackend::Cu129, Version::new([528, 33])),
"""
    rows = driver_reader.parse_driver_table(rust)
    assert {cuda: facts["minimum"] for cuda, facts in rows.items()} == {"13.0": "580", "11.8": "450.80.02"}
    with pytest.raises(UnreadableError, match="no table of drivers"):
        driver_reader.parse_driver_table("static OTHER")


def test_greatest_build_number_is_the_one_that_installers_take():
    names = [f"torch-2.10.0-{tag}cp311-cp311-manylinux_2_28_x86_64.whl" for tag in ("", "3-", "12-")]
    names += ["torch-2.10.0-20-cp312-cp312-manylinux_2_28_x86_64.whl", "torch-2.10.0-cp311-cp311-win_amd64.whl"]
    files = [PublishedFile(name=n, url="", sha256="", version=Version("2.10.0"), yanked=False) for n in names]
    chosen = choose_wheel_by("-cp311-")(IndexedRelease(project="torch", version=Version("2.10.0"), files=tuple(files)))
    assert chosen.name == "torch-2.10.0-12-cp311-cp311-manylinux_2_28_x86_64.whl"


def test_sdist_helper_matches_what_the_reader_strips():
    assert harvest_registry.sdist("top", {"setup.py": ""})


@pytest.mark.parametrize(("names", "only"), [(["core"], True), (["_core", "core"], False)])
def test_a_torch_of_numpy_1_looks_for_the_module_of_numpy_1_only(names, only):
    text = b"".join(b"\0numpy.%s._multiarray_umath\0" % name.encode() for name in names)
    artefact = Memory({"torch/lib/libtorch_python.so": text})
    assert torch_reader.read_numpy_api(artefact) == {"numpy_1_only": only}
    with pytest.raises(UnreadableError, match="names no module"):
        torch_reader.read_numpy_api(Memory({"torch/lib/libtorch_python.so": b"nothing"}))


def test_which_functions_torch_has_for_libraries_that_were_compiled_with_another_torch():
    header = """
        #define AOTI_TORCH_EXPORT __attribute__((visibility("default")))
        AOTI_TORCH_EXPORT AOTITorchError torch_list_size(StableListHandle list_handle, size_t* size);
        AOTI_TORCH_EXPORT AOTITorchError
        torch_parallel_for(int64_t begin);
        // torch_is_not_declared_here(
        AOTI_TORCH_EXPORT AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor);
    """
    artefact = Memory({"torch/include/torch/csrc/stable/c/shim.h": header})
    assert torch_reader.read_stable_functions(artefact) == {
        "stable_functions": ["torch_list_size", "torch_parallel_for"]
    }
    assert torch_reader.read_stable_functions(Memory({"torch/version.py": ""})) == {"stable_functions": []}


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_which_of_them_a_library_calls(tmp_path):
    source = """
        extern int torch_b(void), torch_a(void), aoti_torch_c(void), printf(const char *, ...);
        extern int torch_weak(void) __attribute__((weak));
        int torch_own(void) { return torch_b() + torch_a() + aoti_torch_c() + (torch_weak ? torch_weak() : 0); }
    """
    (tmp_path / "x.c").write_text(source)
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-o", tmp_path / "x.so", tmp_path / "x.c"]
    subprocess.run(command, check=True)
    artefact = Memory({"lib/x.so": (tmp_path / "x.so").read_bytes(), "lib/y.so": b"nothing"})
    assert torch_reader.find_called_functions(artefact, "lib/x.so") == ["torch_a", "torch_b"]
    with pytest.raises(UnreadableError, match=r"lib/y\.so is not a shared library"):
        torch_reader.find_called_functions(artefact, "lib/y.so")


CHOOSES = "def _find_cuda_libs(): pass\ndef get_cuda_bnb_library_path(specs):\n    return {}\n"


def test_whether_bitsandbytes_takes_a_binary_of_the_same_major():
    assert kernel_reader.takes_same_major(CHOOSES.format("_find_cuda_libs()"))
    assert not kernel_reader.takes_same_major(CHOOSES.format("specs"))
    with pytest.raises(UnreadableError, match="not understood"):
        kernel_reader.takes_same_major("def other(): pass\n" + CHOOSES.format("other()"))
    with pytest.raises(UnreadableError, match="has no get_cuda_bnb_library_path"):
        kernel_reader.takes_same_major("")


def test_which_binary_bitsandbytes_loads():
    exact = kernel_reader.list_loaded_binaries(["11.8", "12.6"], same_major=False)
    assert exact == {"11.8": "11.8", "12.6": "12.6"}
    nearest = kernel_reader.list_loaded_binaries(["12.4", "12.10", "12.6"], same_major=True)
    assert [nearest[cuda] for cuda in ("12.1", "12.4", "12.5", "12.9")] == ["12.4", "12.4", "12.4", "12.6"]
    assert "13.0" not in nearest


def test_the_gpu_code_of_a_binary_of_bitsandbytes():
    kernels = harvest_registry.fatbin((2, 80, 0x2011), (2, 90, 0x2011), (1, 90, 0x11))
    linked = harvest_registry.fatbin((2, 80, 0x2011), (2, 90, 0x2011))
    artefact = Memory({"x.so": b"\x7fELF" + kernels + linked, "none.so": b"\x7fELF"})
    assert kernel_reader.scan_binary(artefact, "x.so") == {"sass": ("80", "90"), "ptx": ("90",)}
    with pytest.raises(UnreadableError, match="has no fatbin"):
        kernel_reader.scan_binary(artefact, "none.so")


def test_what_torch_demands_of_an_extension():
    header = "#if !defined(_MSC_VER) && __cplusplus < 202002L\n#error C++20 or later compatible compiler is required"
    artefact = Memory({"torch/include/ATen/ATen.h": header})
    assert torch_reader.read_cxx_minimum(artefact) == {"cxx_minimum": 20}
    check = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb"
    library = Memory({"torch/lib/libc10_cuda.so": f"\0{check}\0_ZN3c104cuda12device_countEv\0{check}\0"})
    assert torch_reader.read_cuda_check(library) == {"cuda_check": check}
    with pytest.raises(UnreadableError, match="has 0 functions"):
        torch_reader.read_cuda_check(Memory({"torch/lib/libc10_cuda.so": "\0"}))
