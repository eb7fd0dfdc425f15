"""Write a cell's lock in the formats of other tools, for people without Docker. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.lock.debian_lock import PackagesLock

if TYPE_CHECKING:
    from knowngood.lock.cell_lock import Distribution
    from knowngood.lock.lock_tree import CellLock


class ExportFormat(StrEnum):
    """The formats that a cell can be written in.

    `cyclonedx` is `registry.bill_of_materials`'s, `compose` and `devcontainer` are `launch.container_files`'s.
    """

    REQUIREMENTS = "requirements"
    PYLOCK = "pylock"
    APPTAINER = "apptainer"
    COMPOSE = "compose"
    DEVCONTAINER = "devcontainer"
    CYCLONEDX = "cyclonedx"


def unpublished_wheels(locked: CellLock) -> list[Distribution]:
    """Return the wheels that were compiled for the cell: no index has them, so a folder must provide them."""
    return [item for item in locked.distributions if Version(item.version).local]


def render_requirements(locked: CellLock) -> str:
    """Return a requirements.txt with hashes; it is complete, so nothing has to be resolved."""
    install = "uv pip install --no-deps --require-hashes -r requirements.txt"
    head = [
        f"# {locked.cell}, lock {locked.digest}",
        f"# For CPython {locked.cell.python} on Linux {locked.cell.host.machine}.",
        "# It is complete, so nothing is to be resolved:",
        f"#   {install}{' --find-links FOLDER' if unpublished_wheels(locked) else ''}",
        *(f"# FOLDER must have {item.file}, which is on no index." for item in unpublished_wheels(locked)),
    ]
    return "".join(f"{line}\n" for line in [*head, *_pins(locked)])


def _pins(locked: CellLock) -> list[str]:
    return [f"{item.name}=={item.version} --hash=sha256:{item.sha256}" for item in sorted(locked.distributions)]


def render_pylock(locked: CellLock, urls: Mapping[str, str]) -> str:
    """Return a pylock.toml (PEP 751).

    `urls` is sha256 -> address; a wheel that is not in it is a file beside the pylock.
    """
    import tomli_w
    from packaging.pylock import Package, PackageSdist, PackageWheel, Pylock
    from packaging.specifiers import SpecifierSet
    from packaging.utils import canonicalize_name

    def package(item: Distribution) -> Package:
        url = urls.get(item.sha256)
        path = None if url else item.file
        name, version, hashes = canonicalize_name(item.name), Version(item.version), {"sha256": item.sha256}
        if item.file.endswith(".whl"):
            wheel = PackageWheel(name=item.file, size=item.size, hashes=hashes, url=url, path=path)
            return Package(name=name, version=version, wheels=[wheel])
        sdist = PackageSdist(name=item.file, size=item.size, hashes=hashes, url=url, path=path)
        return Package(name=name, version=version, sdist=sdist)

    document = Pylock(
        lock_version=Version("1.0"),
        requires_python=SpecifierSet(f"=={locked.cell.python}.*"),
        created_by="knowngood",
        packages=[package(item) for item in sorted(locked.distributions)],
        tool={"knowngood": {"cell": str(locked.cell), "lock": f"sha256:{locked.digest}"}},
    )
    document.validate()
    return tomli_w.dumps(dict(document.to_dict()))


def render_apptainer_definition(locked: CellLock, base: PackagesLock, image: str | None) -> str:
    """Return an Apptainer definition, from a published image or else from the base's packages and the lock."""
    if image:
        return _apptainer_definition(locked, ["Bootstrap: docker", f"From: {image}"], [], _CACHES)
    head = ["Bootstrap: docker", f"From: debian:{base.suite}"]
    names = sorted({*(word for word in base.requested if not word.startswith("+")), "python3-venv"})
    post = ["apt-get update", f"apt-get install --yes --no-install-recommends {' '.join(names)}"]
    post += ["python3 -m venv /opt/venv", "cat > /opt/requirements.txt <<'END'", *_pins(locked), "END"]
    links = " --find-links /opt/wheels" if unpublished_wheels(locked) else ""
    post += [f"/opt/venv/bin/pip install --no-cache-dir --no-deps --require-hashes{links} -r /opt/requirements.txt"]
    return _apptainer_definition(locked, head, post, ["export PATH=/opt/venv/bin:$PATH"])


_CACHES = [
    "# The image keeps downloads and compiled code in /cache, which is read-only here unless a folder is bound to it:",
    "# then each program has its cache where it has it by itself, or where the host's variable says.",
    "if [ ! -w /cache ]; then",
    (
        "    for name in XDG_CACHE_HOME HF_HOME TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR "
        "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR; do"
    ),
    '        case "$(printenv $name)" in /cache*) unset $name ;; esac',
    "    done",
    "fi",
]


def _apptainer_definition(locked: CellLock, head: list[str], post: list[str], environment: list[str]) -> str:
    here = unpublished_wheels(locked) if post else []
    sections = {
        "files": [f"{item.file} /opt/wheels/{item.file}" for item in here],
        "post": post,
        "environment": environment,
        "labels": [f"io.knowngood.cell {locked.cell}", f"io.knowngood.lock sha256:{locked.digest}"],
        "runscript": ['exec python "$@"'],
        "help": [f"{locked.cell}. Run it with `apptainer run --nv`."],
    }
    return "".join(
        [
            *(f"{line}\n" for line in head),
            *(_apptainer_section(name, lines) for name, lines in sections.items() if lines),
        ]
    )


def _apptainer_section(name: str, lines: Iterable[str]) -> str:
    # The lines of a here-document must not be indented.
    indent = "" if name == "post" else "    "
    return f"\n%{name}\n" + "".join(f"{indent}{line}\n" for line in lines)
