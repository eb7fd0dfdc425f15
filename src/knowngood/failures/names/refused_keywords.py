"""Whose function refuses a keyword that the atlas does not know: torch's, or that of a model which is loaded. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from knowngood.compat.incident import Fix
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.logged_errors import LoggedError
from knowngood.failures.names.name_situation import advise

_CALLS_TORCH = lazy_pattern(r"\b(?:torch|nn|F|dist|optim)\.(?:\w+\.)*(?P<called>\w+)\(")
_MAKES_MODEL = lazy_pattern(r"\b(?:cls|model_class)\(")
_LOADING_OPTIONS = frozenset(
    (
        "adapter_kwargs",
        "attn_implementation",
        "device_map",
        "dtype",
        "gguf_file",
        "key_mapping",
        "load_in_4bit",
        "load_in_8bit",
        "low_cpu_mem_usage",
        "max_memory",
        "offload_folder",
        "quantization_config",
        "subfolder",
        "token",
        "torch_dtype",
        "tp_plan",
        "trust_remote_code",
        "use_auth_token",
        "use_flash_attention_2",
        "use_safetensors",
        "variant",
    )
)
"""Options of from_pretrained in some release of transformers."""


@dataclass(frozen=True, kw_only=True)
class RefusedKeyword:
    """What is known of a keyword that a function refuses."""

    component: str
    title: str
    because: str
    fixes: Sequence[Fix]


def find_refusing_package(error: LoggedError) -> RefusedKeyword | None:
    """Return whose function refuses the keyword, by the line that calls it; `None` where that does not say it."""
    if not error.frames:
        return None
    frame, keyword = error.frames[-1], error.fault.name
    name = error.fault.owner.removesuffix(".__init__").rpartition(".")[2]
    calls = [match["called"] for match in _CALLS_TORCH.finditer(frame.code)]
    if error.fault.owner.startswith("Module.") or (calls and name in {*calls, "__init__"}):
        called = calls[0] if calls else name
        return RefusedKeyword(
            component="torch",
            title=f"This torch's {called} does not take {keyword}",
            because=(
                f"The code passes {keyword} to torch's own {called}, and was written for another release, mostly for a "
                "newer one."
            ),
            fixes=[
                Fix(change={"torch": "*"}, note="a newer torch, with the torchvision, torchaudio and extensions of it"),
                advise(f"The torch that the project's requirements name, or the code without {keyword}"),
            ],
        )
    if "transformers" in frame.parts and keyword in _LOADING_OPTIONS and _MAKES_MODEL.search(frame.code):
        return RefusedKeyword(
            component="transformers",
            title=f"from_pretrained of this transformers does not know the option {keyword}",
            because=(
                f"from_pretrained passes on to the model what it does not know itself: {keyword} is an option of other "
                "releases, mostly of newer ones."
            ),
            fixes=[
                Fix(change={"transformers": "*"}, note="a newer transformers: pip install -U transformers"),
                advise(f"The transformers that the script's requirements name, or the call without {keyword}"),
            ],
        )
    if "transformers" in frame.parts and _MAKES_MODEL.search(frame.code) and name == "__init__":
        return _explain_passed_keyword(error)
    return None


def _explain_passed_keyword(error: LoggedError) -> RefusedKeyword | None:
    """A keyword that another package's from_pretrained passes on with all that it does not know itself."""
    outer = next((frame for frame in reversed(error.frames) if frame.installed[:1] != ("transformers",)), None)
    if outer is None or not outer.installed or "**" not in outer.code:
        return None
    package, keyword = outer.installed[0].replace("_", "-"), error.fault.name
    return RefusedKeyword(
        component=package,
        title=f"from_pretrained of this {package} does not know the option {keyword}",
        because=(
            f"{package} ({'/'.join(outer.installed)}.py, line {outer.line}) passes on what it does not know itself, "
            f"and transformers gives it to the model, which does not take it: {keyword} is of another release of "
            f"{package}, mostly of a newer one."
        ),
        fixes=[
            Fix(change={package: "*"}, note=f"a newer {package}: pip install -U {package}"),
            advise(f"The {package} that the script's requirements name, or its repository (pip install git+...)"),
            advise(f"The call without {keyword}"),
        ],
    )
