"""What the number or the words of the CUDA driver say of why a GPU cannot be used. Pure.

The incident of a GPU that is there and cannot be used has many causes; the driver's own code tells them apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from knowngood.compat.incident import Incident, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.name_situation import advise


@dataclass(frozen=True, kw_only=True)
class _Code:
    """A code of the driver, and what it means."""

    words: re.Pattern[str]
    title: str
    because: str
    fixes: tuple[str, ...]
    component: str = OwnComponent.DRIVER
    of_driver_age: bool = False
    """Whether it belongs to the incident of a driver that is too old."""


_CODES = (
    _Code(
        words=lazy_pattern(r"system not yet initialized"),
        title="The GPUs are joined by NVSwitch, and the fabric manager does not run (802)",
        because=(
            "On machines with NVSwitch (HGX, DGX) a GPU can be used only when nvidia-fabricmanager of the "
            "driver's very release runs."
        ),
        fixes=(
            (
                "systemctl status nvidia-fabricmanager on the host: install the release of the driver "
                "(nvidia-smi shows it), enable and start it"
            ),
            "After an update of the driver: update the fabric manager to the same release, or restart the machine",
        ),
    ),
    _Code(
        words=lazy_pattern(r"forward compatibility was attempted on non supported HW|\bError 804\b", re.IGNORECASE),
        title="A libcuda of the image is loaded that this kind of GPU, or the host's driver, does not allow (804)",
        because=(
            "The image brings a libcuda for forward compatibility (cuda-compat), because it is made for a "
            "newer CUDA than the host's "
            "driver. NVIDIA allows that on data-centre GPUs only, and between some releases of the driver."
        ),
        fixes=(
            "A newer driver on the host, at least that for the image's CUDA (and restart the machine after an update)",
            (
                "Without the image's own libcuda: LD_LIBRARY_PATH without /usr/local/cuda/compat, or rm -r "
                "/usr/local/cuda/compat"
            ),
            "An image, or torch, for an older CUDA that the driver takes",
        ),
        of_driver_age=True,
    ),
    _Code(
        words=lazy_pattern(
            r"unsupported display driver / cuda driver combination|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|"
            r"Driver/library version mismatch"
            r"|does not match DSO version|\bError 803\b"
        ),
        title="The driver in the kernel and its libraries are of two releases",
        because=(
            "The driver was updated (often by itself) while the old one was loaded, or the container or "
            "LD_LIBRARY_PATH brings a "
            "libcuda of another release than the host's."
        ),
        fixes=(
            "Restart the machine (or unload and load the nvidia modules); start containers anew afterwards",
            "No libcuda.so of its own in the image or in LD_LIBRARY_PATH; hold the driver's package (apt-mark hold)",
        ),
    ),
    _Code(
        words=lazy_pattern(r"No CUDA GPUs are available|no CUDA-capable device is detected|no GPUs found"),
        title="The process sees no GPU: most likely it was not given one",
        because=(
            "The driver answers and has no GPU for this process: CUDA_VISIBLE_DEVICES is empty or names one "
            "that is not there, the "
            "job or the container was started without a GPU, or the process is one (of Ray, or a login node) "
            "that got none."
        ),
        fixes=(
            "echo $CUDA_VISIBLE_DEVICES and nvidia-smi in the same place: unset it, or name GPUs that nvidia-smi shows",
            (
                "Ask for one: --gpus all (docker), --gres=gpu:1 (Slurm), num_gpus=1 (Ray), a runtime with a GPU "
                "(Colab, Kaggle)"
            ),
        ),
        component=OwnComponent.CONTAINER,
    ),
    _Code(
        words=lazy_pattern(r"all CUDA-capable devices are busy or unavailable"),
        title="Another process has the GPU for itself, or the GPU hangs",
        because="The GPU is in exclusive mode and taken, or a process that was killed still holds it.",
        fixes=(
            (
                "nvidia-smi shows the mode (nvidia-smi -c 0 for the default) and the processes: end the one that "
                "is left, by its id"
            ),
            "Restart the container or the machine when none is shown",
        ),
    ),
    _Code(
        words=lazy_pattern(r"uncorrectable ECC error"),
        title="The GPU's memory is defective: an ECC error that cannot be corrected",
        because="The GPU reports a fault of its memory itself; no program mends it.",
        fixes=(
            "nvidia-smi -q -d ECC shows the counts; reset or restart, and have the card replaced when it comes again",
            "Another GPU",
        ),
    ),
    _Code(
        words=lazy_pattern(r"Unable to determine the device handle for GPU|GPU is lost|fallen off the bus"),
        title="A GPU has fallen off the bus",
        because="The driver cannot speak to the card any more: heat, power, the slot or a defect. dmesg has an Xid 79.",
        fixes=(
            "Restart the machine; check power and cooling (nvidia-smi -q, dmesg | grep Xid)",
            "Leave that card out: CUDA_VISIBLE_DEVICES",
        ),
    ),
)


def describe_driver_code(incident: Incident, error: LastError) -> Incident | None:
    """What the driver's code or words say; `None` where they leave it open."""
    text = f"{error.text} {error.message}"
    for code in _CODES:
        if code.words.search(text):
            if code.of_driver_age != (incident.id == "nvidia-driver-too-old"):
                return None
            return replace(
                incident,
                title=code.title,
                because=code.because,
                component=code.component,
                fix=tuple(advise(fix) for fix in code.fixes),
            )
    return None
