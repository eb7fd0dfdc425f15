"""A compiled part of a project that its own folder does not have, because it was never built there. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood.compat.incident import OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.logged_errors import FaultKind, LoggedError
from knowngood.failures.names.name_situation import NameCause, advise, build_own_cause, describe_caller, find_caller

if TYPE_CHECKING:
    from knowngood.failures.names.atlas_shelf import AtlasShelf

_COMPILED = lazy_pattern(r"^(?:_C|_ext|\w+_(?:cuda|ext|cpp|fast|cython)|cython_\w+|\w*_c_ext|_cuda\w*)$")
"""How the parts are mostly called that a project compiles from C++, CUDA or Cython."""
_IMPORTS = frozenset((FaultKind.IMPORT, FaultKind.MODULE))


def explain_uncompiled_part(error: LoggedError, shelf: AtlasShelf) -> NameCause | None:
    """Return that a project's extension was not built; `None` for other names, and for packages of the atlas."""
    fault = error.fault
    module, _, last = fault.owner.rpartition(".")
    name = fault.name if fault.kind is FaultKind.IMPORT else last
    parent = fault.owner if fault.kind is FaultKind.IMPORT else module
    top = parent.partition(".")[0]
    if fault.kind not in _IMPORTS or not top or not _COMPILED.match(name) or shelf.owner(top):
        return None
    caller = find_caller(error, shelf)
    is_checkout = bool(fault.path) and "-packages/" not in fault.path.replace("\\", "/")
    is_checkout |= not fault.path and caller is not None and not caller.frame.installed
    where = "the project's folder, as it was cloned," if is_checkout else "the folder of the package"
    because = (
        f"{name} is no file of Python: setup.py compiles it from C++, CUDA or Cython into {name}.*.so. Python takes "
        f"{top} from {where} and finds no such file there: it was not built, the build failed, it was "
        "built for another "
        "Python or into another copy, or the cloned folder hides the one that is installed."
    )
    return build_own_cause(
        error,
        title=f"The compiled part {name} of {top} is not there: it was not built",
        because=because + describe_caller(caller),
        fixes=[
            advise(
                "In the folder with setup.py (often lib, ops or models/ops): python setup.py build develop, or "
                "pip install --no-build-isolation -e . ; make.sh or compile.sh where the instructions name it"
            ),
            advise(
                "Its first error says why when it fails: nvcc and CUDA_HOME of torch's CUDA, a g++ that it takes, "
                "TORCH_CUDA_ARCH_LIST"
            ),
            advise(f"find . -name '{name}*.so' shows whether there is one, and for which Python (cpython-310)"),
        ],
        component=OwnComponent.YOUR_CODE if is_checkout else top,
    )
