"""What torch.compile or Triton's compiler says of why it failed, behind the class that only says that it did. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from knowngood.compat.incident import Incident, IncidentKind, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.message_causes import shorten_text
from knowngood.failures.names.name_situation import advise

_INNER = lazy_pattern(
    r"(?:LoweringException|InductorError|SubprocException|InternalTorchDynamoError|backend='\w+' raised): *\n?\s*"
    r"(?:(?:torch\S*\.)?(?:LoweringException|InductorError): *)*"
    r"(?P<text>(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Assertion|OutOfResources|Interrupt)\b[^\n]{0,400})"
)
_UNSUPPORTED = lazy_pattern(r"exc\.Unsupported: (?P<text>[^\n]{3,300})")
_FAKE = lazy_pattern(
    r"TorchRuntimeError: (?:Failed running|Dynamo failed to run FX node with fake tensors:) *(?P<call>[^\n]{3,300})"
)
_FAKE_REASON = lazy_pattern(r"got (?P<reason>[A-Z]\w*(?:Error|Exception)\([^\n]{3,300})")
_USER_CODE = lazy_pattern(r"from user code:\s*\n?\s*File \"(?P<file>[^\"\n]{1,300})\", line (?P<line>\d+)")
_LIMIT = lazy_pattern(
    r"FailOnRecompileLimitHit|RecompileLimitExceeded|recompile_limit reached|cache_size_limit reached"
)
_FLEX = lazy_pattern(r"flex_attention|flex_decoding|create_block_mask")
_CL = lazy_pattern(r"Compiler: (?P<name>[^\s{}]+) is not found")
COMPILERS_OWN = lazy_pattern(r"(?:LoweringException|InductorError|BackendCompilerFailed|InternalTorchDynamoError): ")
"""Before an error that is one of torch's compiler itself: its names are not looked up."""
_OFF = "Without compilation: torch_compile=False, TORCHDYNAMO_DISABLE=1 or --enforce-eager, at the price of speed"
_PASS = lazy_pattern(r"in (?P<stage>make_(?:ttir|ttgir|llir|ptx|cubin))\b|make_(?P<other>ttir|ttgir|llir|ptx|cubin)\(")
_KERNEL = lazy_pattern(r"\b(?P<kernel>_?[a-z]\w*(?:_kernel|_fwd|_bwd)\w*)\[|Name=(?P<name>triton_\w+)")
_SHOWN = 200


def describe_compilation(incident: Incident, error: LastError) -> Incident | None:
    """What the compiler of torch says failed inside it; `None` where it says no more than its class."""
    text = error.log_end.decode("utf-8", "replace")
    if compiler := _CL.search(text):
        return _describe_compiler(incident, compiler["name"])
    if unsupported := _UNSUPPORTED.search(text):
        return _describe_construct(incident, unsupported["text"], _find_user_code(text))
    if fake := _FAKE.search(text):
        return _describe_shapes(incident, fake["call"], text)
    return _describe_limit(incident) if _LIMIT.search(text) else _describe_inner(incident, text)


def _describe_limit(incident: Incident) -> Incident:
    return replace(
        incident,
        title="torch.compile gives up: the same code is compiled anew for each new shape or value",
        because=(
            "Every new length, number or module for which the compiled code does not hold makes another "
            "compilation, up to "
            "a limit (torch._dynamo.config.recompile_limit), and fullgraph does not allow to go on without."
        ),
        fix=(
            advise("Fewer shapes: rows padded to one length or to a multiple, dynamic=True (mark_dynamic)"),
            advise("TORCH_LOGS=recompiles names what changes; a higher torch._dynamo.config.recompile_limit"),
            advise(_OFF),
        ),
    )


def _describe_inner(incident: Incident, text: str) -> Incident | None:
    inner = _INNER.search(text)
    if inner is None:
        return None
    shown = shorten_text(inner["text"].strip(), _SHOWN)
    if _FLEX.search(text):
        return _describe_flex(incident, shown)
    return replace(
        incident,
        title=f"torch.compile fails inside torch's own compiler: {shown}",
        because=(
            "The error behind the class is one of the compiler itself (inductor), not of the program: this "
            "release does not "
            "compile an operation, a shape or a dtype of the model, or lacks something on this machine that "
            "the words name."
        ),
        fix=(
            advise(_OFF),
            advise("Another torch with its own triton: a newer one first, where such defects are mended"),
            advise(
                "torch.compiler.disable on the layer that the trace names; backend='aot_eager' shows whether "
                "it is inductor"
            ),
        ),
    )


def describe_launcher(incident: Incident, error: LastError) -> Incident | None:
    """What the C compiler lacks for Triton's small file; `None` where its own line is not in the log."""
    text = error.log_end.decode("utf-8", "replace")
    of_windows = "win_amd64" in text or "tcc.exe" in text
    if re.search(r"include file 'Python\.h' not found|Python\.h['\"]?: No such file|Failed to find Python libs", text):
        fixes = (
            (
                "Copy the folders include (Include) and libs of a full Python of the very same version "
                "beside the embedded python.exe, "
                "which comes without them; or an environment made with a Python that python.org's installer put there"
            )
            if of_windows
            else "apt-get install python3-dev (python3.12-dev) of the very Python that runs",
        )
        return replace(
            incident,
            title="Python.h is missing: Triton cannot compile its launcher",
            component=OwnComponent.PYTHON,
            because=(
                (
                    "Triton compiles a small C file at run time, against the headers and the library of the "
                    "Python that runs"
                )
                + (", and an embedded Python on Windows has neither." if of_windows else ", which are not installed.")
            ),
            fix=(*(advise(fix) for fix in fixes), advise(_OFF)),
        )
    return None


def describe_kernel_compilation(incident: Incident, error: LastError) -> Incident | None:
    """Which step of Triton's compiler fails on which kernel; `None` where the log does not say."""
    text = error.log_end.decode("utf-8", "replace")
    stages = [match["stage"] or f"make_{match['other']}" for match in _PASS.finditer(text)]
    kernels = [match["kernel"] or match["name"] for match in _KERNEL.finditer(text)]
    if not (stages or kernels):
        return None
    where = f" in its step {stages[-1]}" if stages else ""
    what = f" the kernel {kernels[-1]}" if kernels else " a kernel"
    return replace(
        incident,
        title=f"Triton cannot compile{what} for this GPU{where}",
        because=(
            "A pass of Triton's own compiler fails on code that another release, or another GPU, takes: the "
            "kernel uses what "
            "this GPU does not have (bfloat16 below compute capability 8.0, fp8 below 8.9, large blocks), or "
            "this release has a "
            "defect in that pass."
        ),
    )


def _find_user_code(text: str) -> str:
    places = list(_USER_CODE.finditer(text))
    if not places:
        return ""
    parts = places[-1]["file"].replace("\\", "/").split("/")
    return f"{'/'.join(parts[-2:])}, line {places[-1]['line']}"


def _describe_compiler(incident: Incident, name: str) -> Incident:
    return replace(
        incident,
        title=f"torch.compile finds no C++ compiler: {name}",
        kind=IncidentKind.SOURCE_BUILD,
        component=OwnComponent.COMPILER,
        because=(
            f"Inductor writes C++ and calls {name} to compile it. On Windows that is cl.exe of Visual "
            "Studio's build tools, "
            "which is only on PATH in a console of those tools."
        ),
        fix=(
            advise(
                "Install the Build Tools for Visual Studio with C++, and start from the x64 Native Tools "
                "prompt (or call "
                "vcvarsall.bat x64 first); on Linux apt-get install g++"
            ),
            advise(_OFF),
        ),
    )


def _describe_construct(incident: Incident, words: str, place: str) -> Incident:
    at = f" ({place})" if place else ""
    return replace(
        incident,
        title=f"torch.compile cannot follow the code{at}: {shorten_text(words, _SHOWN)}",
        because=(
            "Dynamo turns Python into a graph and stops at what it cannot follow; with fullgraph=True, or "
            "inside of a layer "
            "that must be one graph, that is an error and not a break in the graph."
        ),
        fix=(
            advise("fullgraph=False, so that it goes on without compiling that part"),
            advise(
                "Take the construct out of the compiled part, or torch.compiler.disable on the function that has it"
            ),
            advise("A newer torch follows more"),
        ),
    )


def _describe_shapes(incident: Incident, call: str, text: str) -> Incident:
    reason = _FAKE_REASON.search(text)
    shown = shorten_text(reason["reason"] if reason else call, _SHOWN)
    place = _find_user_code(text)
    at = f" ({place})" if place else ""
    return replace(
        incident,
        title=f"An operation refuses its inputs while torch.compile traces it{at}: {shown}",
        because=(
            "Dynamo runs the code with tensors that have only a shape and a dtype. The call "
            f"{shorten_text(call, _SHOWN)} fails "
            "with those: the shapes or dtypes do not fit there, as they would not without compiling, or the "
            "operation has no "
            "such rule."
        ),
        fix=(
            advise(
                "TORCHDYNAMO_DISABLE=1: when the same error comes without compiling, the shapes or dtypes are at fault"
            ),
            advise("When it runs without: a newer torch, or torch.compiler.disable on that function"),
        ),
    )


def _describe_flex(incident: Incident, shown: str) -> Incident:
    return replace(
        incident,
        title=f"FlexAttention cannot be compiled here: {shown}",
        because=(
            "FlexAttention is a kernel that torch.compile writes for these shapes, this mask and this GPU. "
            "The compiler fails on "
            "them: a length or a head size that changes or is no multiple of its block, what the mask "
            "function captures, a "
            "dtype, or the CPU are not taken by every release."
        ),
        fix=(
            advise("A newer torch: FlexAttention takes more in each release"),
            advise(
                "Plain inputs: contiguous tensors of one dtype, lengths and head sizes padded to a multiple "
                "of 128 (16), no "
                "dynamic=True, and the mask function with tensors on the same device only"
            ),
            advise("Another attention: attn_implementation='sdpa' or 'flash_attention_2'"),
        ),
    )
