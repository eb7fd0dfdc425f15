"""Look up whether the messages by which incidents are found stand in the releases that they name as their source.

    python check_messages.py FOLDER [INCIDENT...]

A source such as `peft 0.17.0: peft/utils/other.py` names a release and files in its wheel or sdist. FOLDER has the
unpacked releases as FOLDER/peft-0.17.0/; one that is missing is downloaded with pip. Each signature of such an incident
is divided at its gaps; its parts must stand in one of the files, white space, quotes and the joints of Python's strings
left out. An incident with confidence `artefact` must have all of its signatures there, another one of them. What is not
there is listed, and the exit code is 1.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from knowngood_facts.compat.incident import Incident
from knowngood_facts.compat.rule_files import load_incidents

SOURCE = re.compile(r"([a-z0-9-]+) ([0-9][\w.]*): (\S+\.(?:py|so|cpp|cu)(?:, \S+\.(?:py|so|cpp|cu))*)")
_JOINT = re.compile(rb"[\"']\s*\\?\s*[rfbu]{0,2}[\"']")
_DROPPED = b" \t\r\n\f\v\"'`\\"
_FIELD = re.compile(rb"(?<!\{)\{[^{}\n]{0,80}\}|%[sdr]")
_LEAST = 8
"""A shorter part of a signature shows nothing."""


def unpack_release(folder: Path, name: str, version: str) -> Path:
    """Return the folder of an unpacked release; it is downloaded when it is not there."""
    place = folder / f"{name}-{version}"
    if place.exists():
        return place
    loot = folder / "downloads" / place.name
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(loot), f"{name}=={version}"]
    subprocess.run(command, check=True)
    for file in loot.iterdir():
        if file.suffix == ".whl":
            with zipfile.ZipFile(file) as wheel:
                wheel.extractall(place)  # noqa: S202 - a wheel from the index
        else:
            with tarfile.open(file) as sdist:
                sdist.extractall(place, filter="data")
    return place


@cache
def read_plain(path: Path) -> bytes:
    """Return the bytes of a file without white space and quotes; the fields of f-strings become a gap."""
    content = path.read_bytes()
    if path.suffix == ".so":
        return content.translate(None, _DROPPED)
    return _FIELD.sub(b"\0", _JOINT.sub(b"", content)).translate(None, _DROPPED)


def split_signature(text: str) -> list[bytes]:
    """Return the parts of a signature that must stand in a file."""
    text = re.sub(r"^(?:[\w.]+(?:Error|Exception): |ERROR: )", "", text)
    parts = re.split(r"(?<!\\)\*|\{(?:name|number|version)\}", text)
    plain = [part.replace("\\*", "*").encode().translate(None, _DROPPED) for part in parts]
    return [part for part in plain if len(part) >= _LEAST] or [max(plain, key=len)]


def is_in_files(signature: str, files: list[Path]) -> bool:
    """Whether all parts of a signature stand in one file."""
    parts = split_signature(signature)
    return any(all(part in read_plain(path) for part in parts) for path in files)


def find_missing(incident: Incident, folder: Path) -> Iterator[str]:
    """Yield the signatures that do not stand in the releases that an incident names; none when it names no file."""
    files: list[Path] = []
    for source in incident.source:
        match = SOURCE.fullmatch(source)
        if match:
            place = unpack_release(folder, match[1], match[2])
            wanted = match[3].split(", ")
            files += [path for name in wanted for path in sorted(place.rglob(name)) or [place / name]]
    if not files:
        return
    absent = [path for path in files if not path.exists()]
    yield from (f"{path} is not there" for path in absent)
    files = [path for path in files if path.exists()]
    missing = [item.text for item in incident.signatures if not is_in_files(item.text, files)]
    if incident.confidence == "artefact" or len(missing) == len(incident.signatures):
        yield from missing


def main() -> int:
    """Check the named incidents, or all, and list what is not there."""
    folder, names = Path(sys.argv[1]), set(sys.argv[2:])
    defects = 0
    for incident in load_incidents():
        if not names or incident.id in names:
            for text in find_missing(incident, folder):
                defects += 1
                print(f"{incident.id}: {text}")
    print(f"{defects} messages are not in their sources")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
