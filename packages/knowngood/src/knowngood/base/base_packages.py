"""The Debian packages of a base: resolved on a mirror, found in the cache, fetched by their sha256.

What shapes a base besides its packages. Pure data: a change here changes the digest of every base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path

from knowngood.base import debian_host
from knowngood.base.private_apt import PrivateApt, RemotePackage
from knowngood.core.errors import CorruptArchiveError, MissingError
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture
from knowngood.lock.debian_lock import DebianPackage, PackagesLock

RECIPE = 2  # raised when the way from packages to a layer changes
PACKAGES = ("python3", "gcc", "g++", "libc6-dev", "libpython3.11-dev", "ca-certificates")
# Every base has them. The second replaces usrmerge, a converter of old systems that would bring all of Perl.
ALWAYS = ("?essential", "usr-is-merged")
TOOLS = ("mmdebstrap", "zstd")
# The suite of the tools where it is not the base's: bullseye's mmdebstrap wants an apt in the system that it makes.
TOOLS_SUITE = {"bullseye": "bookworm"}
COMPRESS = ("-10", "-T0", "--no-progress", "--quiet", "--stdout", "-")
CONFIG = {
    "Cmd": ["/bin/bash"],
    "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
}
DROP = (
    # documentation and translations; the licences stay
    "usr/share/doc/*",
    "!usr/share/doc/*/copyright",
    "usr/share/man/*",
    "usr/share/info/*",
    "usr/share/locale/*",
    "usr/share/lintian/*",
    "usr/share/bug/*",
    "usr/share/gcc/*",
    "usr/share/gdb/*",
    # traces of this bootstrap or of the host it ran on
    "dev/*",
    "proc/*",
    "sys/*",
    "run/*",
    "tmp/*",
    "etc/hostname",
    "etc/resolv.conf",
    "etc/machine-id",
    "etc/apt*",
    "etc/.pwd.lock",
    "var/lib/apt*",
    "var/lib/dpkg/lock*",
    "var/lib/dpkg/triggers/Lock",
    "var/lib/dpkg/*-old",
    "var/cache/*",
    "!var/cache/debconf",
    "!var/cache/ldconfig",
    "var/log/*",
    "var/tmp/*",
    # not needed to compile a launcher or an extension: a static Python, sanitizers, a debugger's tool
    "usr/lib/*/libpython3.*.a",
    "usr/lib/python3.*/config-*/*.a",
    "usr/lib/gcc/*/lib[alut]*san*",
    "usr/lib/*/lib[alut]*san.so*",
    "usr/bin/*lto-dump*",
)

# Since Debian 12 every system has a merged /usr. mmdebstrap merges it for suites that it knows, not for an archive.
MERGE_USR = 'for name in bin sbin lib lib64; do mkdir -p "$1/usr/$name"; ln -s "usr/$name" "$1/$name"; done'

# Python's bytecode is compiled again, in one order, with one hash seed and without a time stamp: the package's own
# compilation follows the order of files on the disk, which marshal's reference flags show.
COMPILE = (
    """find "$1/usr" -name __pycache__ -type d -prune -exec rm -rf {} + && """
    """env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin PYTHONHASHSEED=0 chroot "$1" sh -c """
    """'python3 -m compileall -q -j 1 --invalidation-mode unchecked-hash /usr/lib/python3 /usr/lib/python3.*'"""
)


@dataclass(frozen=True, kw_only=True)
class DebianBase:
    """A base made of Debian packages, as matrix.yaml asks for it.

    Without `security` the packages come from the release itself, which changes a few times a year; the mirrors keep
    its older versions for years. With it they come from the security archive too, which changes weekly and removes
    what it replaced.
    """

    name: str
    suite: str = "bookworm"
    packages: tuple[str, ...] = PACKAGES
    python: str = "3.11"
    security: bool = False
    host: HostArchitecture = DEFAULT_HOST

    @property
    def requested(self) -> tuple[str, ...]:
        """The packages, as the lock names what it was made for."""
        return (*self.packages, *(("+security",) if self.security else ()))

    @property
    def lock_command(self) -> str:
        """The command that makes a new lock."""
        return f"knowngood lock --base {self.name}"


def open_mirror(base: DebianBase, folder: Path) -> PrivateApt:
    """Return a private apt below `folder` with the fresh package lists of the base's suite.

    Raises:
        MissingError: no mirror known on this host serves the suite, or its security fixes where they are asked for.
    """
    archives = debian_host.find_debian_archives(base.suite, folder / "host")
    archives = tuple(archive for archive in archives if archive.suite == base.suite or base.security)
    if base.security and f"{base.suite}-security" not in {archive.suite for archive in archives}:
        raise MissingError(f"base {base.name} wants security fixes, and no mirror known here serves them")
    name = f"apt-{base.suite}{'-security' if base.security else ''}{_suffix(base.host)}"
    mirror = PrivateApt(folder / name, archives, host=base.host)
    mirror.refresh()
    return mirror


def _suffix(host: HostArchitecture) -> str:
    return "" if host == DEFAULT_HOST else f"-{host}"


def resolve_base(base: DebianBase, folder: Path, mirror: PrivateApt) -> PackagesLock:
    """Return a lock, without a digest, of the packages that the mirror serves now."""
    return PackagesLock(
        suite=base.suite,
        epoch=int(parsedate_to_datetime(mirror.release_date(base.suite)).timestamp()),
        requested=base.requested,
        tools=_pin_packages(_locate_tools(base, folder, mirror)),
        packages=_pin_packages(_resolve_packages(base, mirror)),
        made_by=base.lock_command,
    )


def fetch_packages(
    base: DebianBase, lock: PackagesLock, folder: Path, mirror: PrivateApt | None = None
) -> tuple[dict[DebianPackage, Path], list[DebianPackage]]:
    """Return the files of all locked packages and tools, and those packages that nobody serves any more."""
    wanted = (*lock.tools, *lock.packages)
    files = find_cached_debs(wanted, folder / "debs")
    if len(files) < len(wanted):
        mirror = mirror or open_mirror(base, folder)
        tools = {(remote.name, remote.arch): remote.uri for remote in _locate_tools(base, folder, mirror)}
        for tool in lock.tools:
            present = tools.get((tool.name, tool.arch))
            fetch_debs([tool], {tool.name: present} if present else {}, mirror, folder / "debs")
        served = {remote.name: remote.uri for remote in _resolve_packages(base, mirror)}
        fetch_debs(lock.packages, served, mirror, folder / "debs")
        files = find_cached_debs(wanted, folder / "debs")
    return files, [package for package in wanted if package not in files]


def _resolve_packages(base: DebianBase, mirror: PrivateApt) -> tuple[RemotePackage, ...]:
    """Return the base's packages, and those of every base that the suite has (bullseye has no usr-is-merged)."""
    always = [name for name in ALWAYS if name.startswith("?") or mirror.offers(name)]
    return mirror.resolve([*always, *base.packages])


def _locate_tools(base: DebianBase, folder: Path, mirror: PrivateApt) -> tuple[RemotePackage, ...]:
    """Return the packages with the programs that make the base, for every machine that it can be made on.

    A machine of x86-64 makes each base, one of another kind only its own.
    """
    suite = TOOLS_SUITE.get(base.suite, base.suite)
    located: set[RemotePackage] = set()
    for machine in dict.fromkeys([DEFAULT_HOST, base.host]):
        place = mirror
        if (suite, machine) != (base.suite, base.host):
            place = open_mirror(replace(base, suite=suite, security=False, host=machine), folder)
        located |= set(place.locate(TOOLS))
    return tuple(sorted(located))


def _pin_packages(remotes: Iterable[RemotePackage]) -> tuple[DebianPackage, ...]:
    return tuple(
        DebianPackage(
            name=remote.name,
            version=remote.version,
            arch=remote.arch,
            sha256=remote.sha256,
        )
        for remote in remotes
    )


def find_cached_debs(packages: Iterable[DebianPackage], cache: Path) -> dict[DebianPackage, Path]:
    """Return the files of those packages that are in the cache with the right sha256."""
    paths = {package: cache / _deb_name(package) for package in packages}
    return {package: path for package, path in paths.items() if _has_content(path, package)}


def fetch_debs(packages: Sequence[DebianPackage], served: Mapping[str, str], mirror: PrivateApt, cache: Path) -> None:
    """Fetch into the cache what can be had of the packages that it lacks, checked by sha256.

    `served` gives the address of a package's present version on the mirror; older versions lie in the same folder.

    Raises:
        CorruptArchiveError: a package arrived twice with other bytes than were locked.
    """
    cache.mkdir(parents=True, exist_ok=True)
    cached = find_cached_debs(packages, cache)
    missing = [package for package in packages if package not in cached and package.name in served]
    corrupt = _fetch_once(missing, served, mirror, cache)
    if corrupt := _fetch_once(list(corrupt), served, mirror, cache):
        package, actual = next(iter(corrupt.items()))
        raise CorruptArchiveError(
            package_address(package, served[package.name]).rpartition("/")[2],
            expected=package.sha256,
            actual=actual,
            advice="the mirror or a proxy before it serves other bytes than were locked",
        )


def _fetch_once(
    packages: Sequence[DebianPackage], served: Mapping[str, str], mirror: PrivateApt, cache: Path
) -> dict[DebianPackage, str]:
    """Fetch the packages; return those that arrived with another sha256, which is given."""
    parts = {package: cache / f"{_deb_name(package)}.part" for package in packages}
    mirror.fetch([(package_address(package, served[package.name]), part) for package, part in parts.items()])
    corrupt = {}
    for package, part in parts.items():
        if not part.exists():
            continue
        if (actual := _file_sha256(part)) == package.sha256:
            part.rename(cache / _deb_name(package))
        else:
            corrupt[package] = actual
            part.unlink()
    return corrupt


def package_address(package: DebianPackage, present: str) -> str:
    """Return the address of a version of a package, which is in the same folder as its present version."""
    version = package.version.rpartition(":")[2].replace("+", "%2b")
    return f"{present.rpartition('/')[0]}/{package.name.replace('+', '%2b')}_{version}_{package.arch}.deb"


def _deb_name(package: DebianPackage) -> str:
    return f"{package.name}-{package.sha256}.deb"


def _has_content(path: Path, package: DebianPackage) -> bool:
    try:
        return _file_sha256(path) == package.sha256
    except FileNotFoundError:
        return False


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
