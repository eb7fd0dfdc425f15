"""What the dev variant of a cell adds to its image: nvcc and headers of its CUDA, and what builds extensions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from knowngood.launch import dev_toolkit_inside
from knowngood.lock import cell_locking
from knowngood.wheels import compile_request, cuda_toolkit

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.core.matrix import Matrix
    from knowngood.core.notify import Notify
    from knowngood.lock.lock_tree import CellLock
    from knowngood.lock.resolver import ResolverRequest


@dataclass(frozen=True, kw_only=True)
class DevToolkit:
    """The CUDA toolkit of a cell's dev variant: what is asked of the index, whose answer the day fixes."""

    cell: Cell
    pins: tuple[tuple[str, str], ...]
    """The cell's distributions; `cuda-toolkit` among them names the patch release."""
    request: ResolverRequest

    @property
    def inputs(self) -> str:
        """What decides the toolkit, for the name of an image that has it."""
        script = hashlib.sha256(Path(dev_toolkit_inside.__file__).read_bytes()).hexdigest()
        release = dict(self.pins).get("cuda-toolkit", self.cell.cuda)
        return f"CUDA {release} of {self.request.locked_at}, {self.request.python}, {self.request.glibc}, {script}"

    @property
    def architecture(self) -> str:
        """The cell's GPU as torch's build helper writes it, such as `9.0`."""
        number = self.cell.gpu.removeprefix("sm_")
        return f"{number[:-1]}.{number[-1]}"

    def install(self, notify: Notify) -> Path:
        """Install the toolkit into the cache and return its folder.

        Raises:
            MissingError: no nvcc for the cell's CUDA can be had.
            KnowngoodError: this nvcc does not know the cell's GPU.
        """
        toolkit = cuda_toolkit.install_cuda_toolkit(self.cell, self.request, self.pins, notify)
        cuda_toolkit.check_toolkit_codes(toolkit, [self.cell.gpu.removeprefix("sm_")])
        if toolkit.note:
            notify(toolkit.note)
        return toolkit.folder


def describe_dev_toolkit(matrix: Matrix, lock: CellLock) -> DevToolkit:
    """Return the toolkit for a locked cell. Pure."""
    return DevToolkit(
        cell=lock.cell,
        pins=tuple((item.name, item.version) for item in lock.distributions),
        request=cell_locking.resolver_request(matrix.entry(lock.cell), matrix),
    )


def missing_build_tools(lock: CellLock) -> Sequence[str]:
    """Return the requirements for building extensions of torch, less what the cell has already. Pure."""
    present = {item.name for item in lock.distributions}
    return [text for text in compile_request.BUILD_REQUIREMENTS if Requirement(text).name not in present]
