"""The sdist that is compiled: out of the registry or from a file, checked by hash."""

from __future__ import annotations

import hashlib
import re
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version

from knowngood.errors import KnowngoodError, MissingError, UsageError


@dataclass(frozen=True, kw_only=True)
class Sdist:
    """A source distribution on this machine."""

    package: str
    """Canonical, as in `flash-attn`."""
    version: str
    path: Path
    file: str
    """The name it was published under."""
    sha256: str

    def setup(self) -> str:
        """The text of its `setup.py`, empty where it has none."""
        with tarfile.open(self.path) as archive:
            for member in archive:
                if member.name.count("/") == 1 and member.name.endswith("/setup.py"):
                    opened = archive.extractfile(member)
                    return opened.read().decode(errors="replace") if opened else ""
        return ""

    def unpack(self, folder: Path) -> None:
        """Its files below `folder`, with the times they have in the archive: what is there already stays as it is.

        A setup may remove files of its own when it is done, so this comes before every attempt.
        """
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with tarfile.open(self.path) as archive:
                archive.extractall(folder, filter=_below_top)  # noqa: S202  # the data filter is in it
        except (tarfile.TarError, zlib.error, EOFError) as error:
            raise KnowngoodError(f"{self.file} is not a readable sdist: {error}") from None


def _below_top(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """The member without the sdist's top folder, and nothing that would leave `folder`."""
    rest = member.name.partition("/")[2]
    return tarfile.data_filter(member.replace(name=rest), folder) if rest else None


def from_file(name: str) -> Sdist:
    """The sdist at a path, which may pin its content as pip's links do, `FILE#sha256=...`."""
    text, _, fragment = name.partition("#")
    path = Path(text).expanduser()
    if not path.is_file():
        raise UsageError(f"--sdist {text}: there is no such file")
    package, version = _named(path.name)
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if fragment:
        wanted = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
        if wanted is None:
            raise UsageError(f"--sdist {name}: after # comes sha256= and 64 hex digits")
        if wanted[1] != found:
            raise KnowngoodError(f"{path.name}: its sha256 is {found}, asked for was {wanted[1]}; it is another file")
    return Sdist(package=package, version=version, path=path.resolve(), file=path.name, sha256=found)


def _named(file: str) -> tuple[str, str]:
    if not file.endswith(".tar.gz"):
        raise UsageError(f"{file} is not an sdist: those end in .tar.gz")
    try:
        name, version = parse_sdist_filename(file)
    except InvalidSdistFilename as error:
        raise UsageError(f"that is not the name of an sdist: {error}") from None
    return name, str(version)


def from_registry(package: str, version: str) -> Sdist:
    """The sdist of a release, as the registry states its hash.

    Raises `MissingError` when the registry does not answer, `KnowngoodError` when it has no such sdist or another one.
    """
    from knowngood.harvest.index import SimpleIndex, Unreadable
    from knowngood.harvest.sdist import RemoteSdist

    name = canonicalize_name(package)
    try:
        index = SimpleIndex()
        files = [file for file in index.files(name) if file.version == Version(version) and not file.is_wheel]
        file = next((file for file in files if file.name.endswith(".tar.gz")), None)
        if file is None:
            raise KnowngoodError(f"the registry has no sdist (.tar.gz) of {package} {version}")
        if not file.sha256:
            raise KnowngoodError(f"the registry states no sha256 for {file.name}, so nothing says that it is the one")
        path = RemoteSdist(file, index.session).path
    except Unreadable as error:
        raise (MissingError if error.again else KnowngoodError)(f"{package} {version}: {error}") from None
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != file.sha256:  # the cache's copy: the download was checked when it arrived
        path.unlink()
        raise KnowngoodError(
            f"{file.name} in the cache has the sha256 {found}, the registry states {file.sha256}; "
            "it was damaged and is removed: run it again"
        )
    return Sdist(package=name, version=str(file.version), path=path, file=file.name, sha256=found)
