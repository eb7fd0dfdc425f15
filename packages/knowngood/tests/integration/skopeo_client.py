"""Debian's skopeo, unpacked without installing it: a client of signatures that this project did not write.

Debian 12 builds skopeo without sigstore, so it comes from Debian 13, with the C library that it was built for.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from knowngood.base import debian_host, private_apt

SUITE = "trixie"


def unpack(folder: Path) -> Path:
    """Unpack skopeo and all libraries that it needs; return the folder."""
    packages = private_apt.PrivateApt(folder / "apt", debian_host.find_debian_archives(SUITE, folder / "host"))
    packages.refresh()
    names = [item.name for item in packages.resolve(["skopeo"]) if item.name.startswith(("lib", "skopeo"))]
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
