"""Debian's skopeo and podman, unpacked without installing them: clients of signatures that this project did not write.

Debian 12 builds skopeo without sigstore, so both come from Debian 13, with the C library that they were built for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from knowngood.base import debian_host, private_apt

SUITE = "trixie"
PARTS = {"skopeo": ("lib", "skopeo"), "podman": ("lib", "podman", "conmon", "crun", "golang-github", "netavark")}
"""Program -> what the names of the packages begin with that it needs to get an image."""


def unpack(folder: Path, program: str = "skopeo") -> Path:
    """Unpack a program and all libraries that it needs; return the folder."""
    packages = private_apt.PrivateApt(folder / "apt", debian_host.find_debian_archives(SUITE, folder / "host"))
    packages.refresh()
    names = [item.name for item in packages.resolve([program]) if item.name.startswith(PARTS[program])]
    for package in packages.download(names, folder / "debs"):
        private_apt.unpack_deb(package, folder / "root")
    return folder / "root"


def write_policy(folder: Path, host: str, public: Path) -> None:
    """Write a policy that takes nothing but images of one registry that were signed with this key."""
    rule = {"type": "sigstoreSigned", "keyPath": str(public)}
    policy = {"default": [{"type": "reject"}], "transports": {"docker": {host: [rule]}}}
    (folder / "policy.json").write_text(json.dumps(policy))
    (folder / "registries.d").mkdir(exist_ok=True)
    (folder / "registries.d/knowngood.yaml").write_text(f"docker:\n  {host}:\n    use-sigstore-attachments: true\n")


def copy(root: Path, folder: Path, reference: str, architecture: str = "amd64") -> subprocess.CompletedProcess[str]:
    """Copy an image into a folder under the policy of `write_policy`; of an index the one for this architecture."""
    (loader,) = (path for path in root.glob("**/ld-linux-x86-64.so.2") if not path.is_symlink())
    argv = [str(loader), "--library-path", str(root / "usr/lib/x86_64-linux-gnu"), str(root / "usr/bin/skopeo")]
    argv += ["--policy", str(folder / "policy.json"), "--registries.d", str(folder / "registries.d")]
    argv += ["--override-os", "linux", "--override-arch", architecture]
    return subprocess.run(
        [*argv, "copy", "--src-tls-verify=false", f"docker://{reference}", f"dir:{folder / 'copy'}"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"HOME": str(folder)},
    )


def pull_with_podman(root: Path, folder: Path, reference: str) -> subprocess.CompletedProcess[str]:
    """Let podman pull an image under the policy of `write_policy`, which it finds where a user of it has it.

    podman starts itself again, so it runs in its folder as in a system of its own, with this one's /tmp, devices and
    network.
    """
    settings = folder / ".config/containers"
    shutil.copytree(folder / "registries.d", settings / "registries.d", dirs_exist_ok=True)
    shutil.copy(folder / "policy.json", settings)
    for name in ("lib", "lib64"):
        if not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    for name in ("tmp", "dev", "sys", "proc", "run", "var/tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    mounts = [*(f"mount --rbind /{name} ./{name}" for name in ("tmp", "dev", "sys")), "mount -t proc proc ./proc"]
    mounts = ['mount --bind "$PWD" "$PWD"', 'cd "$PWD"', *mounts]  # the root of a system is a mount
    script = " && ".join([*mounts, "mount -t tmpfs run ./run", 'exec chroot . /usr/bin/podman "$@"'])
    argv = ["unshare", "--mount", "sh", "-c", script, "podman", "--storage-driver", "vfs"]
    argv += ["--root", str(folder / "podman"), "--runroot", str(folder / "podman-run")]
    return subprocess.run(
        [*argv, "pull", "--tls-verify=false", f"docker://{reference}"],
        cwd=root,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
    )
