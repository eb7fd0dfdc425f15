"""A cell's lock in other tools' forms, for people without Docker. Pure: lock and names in, text out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from knowngood.system.packages_lock import PackagesLock

if TYPE_CHECKING:
    from knowngood.locks.lock import Distribution
    from knowngood.locks.tree import CellLock


class Format(StrEnum):
    """What a lock can be written as."""

    REQUIREMENTS = "requirements"
    PYLOCK = "pylock"
    APPTAINER = "apptainer"
    DEVCONTAINER = "devcontainer"
    CONDA = "conda"


def local(locked: CellLock) -> list[Distribution]:
    """The wheels that no index has: they were compiled for the cell, and a folder must provide them."""
    return [item for item in locked.distributions if Version(item.version).local]


def requirements(locked: CellLock) -> str:
    """requirements.txt with a hash a line. Complete: to be installed without resolving anything."""
    install = "uv pip install --no-deps --require-hashes -r requirements.txt"
    head = [
        f"# {locked.cell}, lock {locked.digest}",
        f"# For CPython {locked.cell.python} on Linux x86_64. It is complete, so nothing is to be resolved:",
        f"#   {install}{' --find-links FOLDER' if local(locked) else ''}",
        *(f"# FOLDER must have {item.file}, which is on no index." for item in local(locked)),
    ]
    return "".join(f"{line}\n" for line in [*head, *_pins(locked)])


def _pins(locked: CellLock) -> list[str]:
    return [f"{item.name}=={item.version} --hash=sha256:{item.sha256}" for item in sorted(locked.distributions)]


def pylock(locked: CellLock, urls: Mapping[str, str]) -> str:
    """pylock.toml (PEP 751). `urls` gives each wheel's address by its sha256; one of no index is a file beside it."""
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


def conda(locked: CellLock) -> str:
    """environment.yml: Python and pip from conda, everything else by pip from the lock."""
    import yaml

    # pip takes --no-deps from its command line or environment only; the lock being complete, nothing is to be resolved.
    head = [
        f"# {locked.cell}, lock {locked.digest}",
        "# Create it with: PIP_NO_DEPS=1 conda env create --file environment.yml",
    ]
    head += [f"# Put {item.file}, which is on no index, into the folder ./wheels." for item in local(locked)]
    options = ["--find-links ./wheels"] if local(locked) else []
    document = {
        "name": f"knowngood-{locked.digest[:12]}",
        "channels": ["conda-forge"],
        "dependencies": [f"python={locked.cell.python}", "pip", {"pip": [*options, *_pins(locked)]}],
    }
    return "".join(f"{line}\n" for line in head) + yaml.safe_dump(document, sort_keys=False, width=1000)


def devcontainer(locked: CellLock, image: str) -> str:
    """devcontainer.json for an image of the cell."""
    document: dict[str, Any] = {
        "name": f"knowngood {locked.cell}",
        "image": image,
        "runArgs": ["--gpus", "all"],
        "hostRequirements": {"gpu": True},
        "mounts": ["source=knowngood,target=/cache,type=volume"],
    }
    return json.dumps(document, indent=2) + "\n"


def apptainer(locked: CellLock, base: PackagesLock | str, image: str | None) -> str:
    """An Apptainer definition: from a published image, else from the base's packages and the lock."""
    if image:
        return _definition(locked, ["Bootstrap: docker", f"From: {image}"], [], _CACHES)
    if isinstance(base, PackagesLock):
        head = ["Bootstrap: docker", f"From: debian:{base.suite}"]
        names = sorted({*(word for word in base.requested if not word.startswith("+")), "python3-venv"})
        post = ["apt-get update", f"apt-get install --yes --no-install-recommends {' '.join(names)}"]
    else:
        head, post = ["Bootstrap: docker", f"From: {base}"], []
    post += ["python3 -m venv /opt/venv", "cat > /opt/requirements.txt <<'END'", *_pins(locked), "END"]
    links = " --find-links /opt/wheels" if local(locked) else ""
    post += [f"/opt/venv/bin/pip install --no-cache-dir --no-deps --require-hashes{links} -r /opt/requirements.txt"]
    return _definition(locked, head, post, ["export PATH=/opt/venv/bin:$PATH PYTHONPYCACHEPREFIX=/tmp/pycache"])


_CACHES = [
    "# The image keeps downloads and compiled code in /cache, which is read-only here unless a folder is bound to it:",
    "# then each program has its cache where it has it by itself, or where the host's variable says.",
    "if [ ! -w /cache ]; then",
    "    for name in XDG_CACHE_HOME HF_HOME TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR PYTHONPYCACHEPREFIX; do",
    '        case "$(printenv $name)" in /cache*) unset $name ;; esac',
    "    done",
    '    export PYTHONPYCACHEPREFIX="${PYTHONPYCACHEPREFIX:-/tmp/pycache}"',
    "fi",
]


def _definition(locked: CellLock, head: list[str], post: list[str], environment: list[str]) -> str:
    here = local(locked) if post else []
    sections = {
        "files": [f"{item.file} /opt/wheels/{item.file}" for item in here],
        "post": post,
        "environment": environment,
        "labels": [f"io.knowngood.cell {locked.cell}", f"io.knowngood.lock sha256:{locked.digest}"],
        "runscript": ['exec python "$@"'],
        "help": [f"{locked.cell}. Run it with `apptainer run --nv`."],
    }
    return "".join(
        [*(f"{line}\n" for line in head), *(_section(name, lines) for name, lines in sections.items() if lines)]
    )


def _section(name: str, lines: Iterable[str]) -> str:
    # What stands in a here-document must begin its line.
    indent = "" if name == "post" else "    "
    return f"\n%{name}\n" + "".join(f"{indent}{line}\n" for line in lines)
