"""The source archive (sdist) that is compiled: from the index or from a file, checked by its hash."""

from __future__ import annotations

import hashlib
import re
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version

from knowngood.core.errors import KnowngoodError, MissingError, UsageError


@dataclass(frozen=True, kw_only=True)
class Sdist:
    """A source archive on this machine."""

    package: str
    """Canonical name, such as `flash-attn`."""
    version: str
    path: Path
    file: str
    """The name under which it was published."""
    sha256: str

    def setup(self) -> str:
        """Return the text of its `setup.py`, or an empty text."""
        with tarfile.open(self.path) as archive:
            for member in archive:
                if member.name.count("/") == 1 and member.name.endswith("/setup.py"):
                    opened = archive.extractfile(member)
                    return opened.read().decode(errors="replace") if opened else ""
        return ""

    def unpack(self, folder: Path) -> None:
        """Extract the files below `folder` with the times of the archive.

        This is done before every attempt, since a setup may remove files of its own when it is done.
        """
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with tarfile.open(self.path) as archive:
                archive.extractall(folder, filter=_below_top)  # noqa: S202  # _below_top applies the data filter
        except (tarfile.TarError, zlib.error, EOFError) as error:
            raise KnowngoodError(f"{self.file} is not a readable sdist: {error}") from None


def _below_top(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Return the member without the top folder, or `None`; a path that would leave `folder` is refused."""
    rest = member.name.partition("/")[2]
    return tarfile.data_filter(member.replace(name=rest), folder) if rest else None


def read_sdist_file(name: str) -> Sdist:
    """Return the sdist at a path; `FILE#sha256=...` pins its content, as in pip's links."""
    text, _, fragment = name.partition("#")
    path = Path(text).expanduser()
    if not path.is_file():
        raise UsageError(f"--sdist {text}: there is no such file")
    package, version = _parse_sdist_name(path.name)
    with path.open("rb") as opened:
        actual = hashlib.file_digest(opened, "sha256").hexdigest()
    if fragment:
        pin = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
        if pin is None:
            raise UsageError(f"--sdist {name}: write sha256= and 64 hex digits after #")
        if pin[1] != actual:
            raise KnowngoodError(f"{path.name}: its sha256 is {actual}, not {pin[1]} as stated; it is another file")
    return Sdist(package=package, version=version, path=path.resolve(), file=path.name, sha256=actual)


def _parse_sdist_name(file: str) -> tuple[str, str]:
    if not file.endswith(".tar.gz"):
        raise UsageError(f"{file} is not an sdist: its name must end in .tar.gz")
    try:
        name, version = parse_sdist_filename(file)
    except InvalidSdistFilename as error:
        raise UsageError(f"this is not the name of an sdist: {error}") from None
    return name, str(version)


def fetch_sdist(package: str, version: str) -> Sdist:
    """Return the sdist of a release, checked against the hash that the index states.

    Raises:
        MissingError: the index does not answer.
        KnowngoodError: it has no such sdist, states no hash, or serves a corrupt one; or the cache's copy was damaged.
    """
    from knowngood.index.artefact import BrokenArchiveError, UnreadableError
    from knowngood.index.package_index import SimpleIndex
    from knowngood.index.remote_archive import RemoteSdist

    name = canonicalize_name(package)
    try:
        index = SimpleIndex()
        files = [file for file in index.files(name) if file.version == Version(version) and not file.is_wheel]
        file = next((file for file in files if file.name.endswith(".tar.gz")), None)
        if file is None:
            raise KnowngoodError(f"the index has no sdist (.tar.gz) of {package} {version}")
        if not file.sha256:
            raise KnowngoodError(f"the index states no sha256 for {file.name}, so it cannot be verified")
        path = RemoteSdist(file, index.session).path
    except UnreadableError as error:
        transient = error.again and not isinstance(error, BrokenArchiveError)
        raise (MissingError if transient else KnowngoodError)(f"{package} {version}: {error}") from None
    with path.open("rb") as opened:
        actual = hashlib.file_digest(opened, "sha256").hexdigest()
    if actual != file.sha256:  # the cache's copy: the download was checked when it arrived
        path.unlink()
        raise KnowngoodError(
            f"{file.name} in the cache has the sha256 {actual}, the index states {file.sha256}; "
            "it was damaged and is now removed: run it again"
        )
    return Sdist(package=name, version=str(file.version), path=path, file=file.name, sha256=actual)
