"""`knowngood keys make|show|seal`: the keys to sign with, and the signed list of hashes of a release."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer, Word
from knowngood.core.errors import UsageError
from knowngood.core.publish_policy import SigningIdentity
from knowngood.project import release_seal, release_signers
from knowngood.project.checkout import Project, find_checkout, find_project
from knowngood.project.release_seal import EVIDENCE_FOLDER, KNOWLEDGE_FOLDERS, SEAL_FILE, SEAL_SIGNATURE_FILE
from knowngood.project.release_signers import VerificationKey

PUBLIC_SUFFIX = ".pub"


def _configure_make(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="the file of the private key, outside of the project "
        "(default: knowngood/release.key in XDG_CONFIG_HOME, else in ~/.config); the public key is written beside it, "
        "with .pub",
    )
    parser.add_argument("--no-passphrase", action="store_true", help="write the private key without encrypting it")


def make_keys(arguments: argparse.Namespace) -> Answer:
    """Write a new pair of keys, outside of the project."""
    private = Path(arguments.file).absolute() if arguments.file else _default_file()
    root = find_project().root
    if private.resolve().is_relative_to(root):
        raise UsageError(f"{private} is in the project, where it may be committed; name a file outside of {root}")
    public = private.with_name(private.stem + PUBLIC_SUFFIX)
    passphrase = None
    if not arguments.no_passphrase:
        passphrase = release_signers.read_passphrase("a passphrase for the new key", confirm=True)
    key = release_signers.make_key_pair(private, public, passphrase)
    document = {
        "private": str(private),
        "public": str(public),
        "fingerprint": key.fingerprint,
        "encrypted": passphrase is not None,
    }
    state = "encrypted with the passphrase" if passphrase else "NOT encrypted: whoever has the file can sign"
    text = (
        f"private key: {private} ({state}); keep it secret, and keep a copy where only you can read it\n"
        f"public key:  {public}\n"
        f"fingerprint: {key.fingerprint}\n"
        f"To use it, copy the public key into the project, as keys/{public.name}, and name it in matrix.yaml,\n"
        f"`publish: {{key: keys/{public.name}}}`; sign with `export {release_signers.SIGNING_KEY_VARIABLE}={private}`."
    )
    return Answer(0, document, text)


def _default_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "knowngood" / "release.key"


def show_keys(_: argparse.Namespace) -> Answer:
    """Show the public keys and the identities that matrix.yaml names."""
    project = find_project()
    keys = release_signers.load_verification_keys(project.root, project.matrix.publish.keys)
    identities = project.matrix.publish.identities
    document = {
        "keys": [{"file": key.name, "fingerprint": key.fingerprint} for key in keys],
        "identities": [{"issuer": item.issuer, "subject": item.subject} for item in identities],
    }
    return Answer(0, document, _key_lines(keys, identities))


def _key_lines(keys: Sequence[VerificationKey], identities: Sequence[SigningIdentity]) -> str:
    lines = [f"{key.name}: {key.fingerprint}" for key in keys] + [item.name for item in identities]
    return "\n".join(lines) or "matrix.yaml names no key: what is published from here is unsigned"


def _configure_seal(parser: argparse.ArgumentParser) -> None:
    shared_arguments.add_signing_key(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; verify the signature, and list what was changed or added after it was made",
    )


def seal_release(arguments: argparse.Namespace) -> Answer:
    """Write the seal and its signature, or compare the files with it; a difference makes the exit code 1."""
    project = find_project() if arguments.check else find_checkout("seal.json")
    if arguments.check:
        shared_arguments.refuse_options(arguments, ("key",), "does nothing with --check, which needs the public key")
        return _check_seal(project)
    named = release_signers.load_verification_keys(project.root, project.matrix.publish.keys)
    key = release_signers.find_signing_key(arguments.key, named)
    if key is None:
        raise UsageError(
            f"there is no key to seal with; name its file with --key or {release_signers.SIGNING_KEY_VARIABLE}, "
            "or make one with `knowngood keys make`"
        )
    files = release_seal.write_release_seal(project.root, key)
    unused = "" if named else "; matrix.yaml names no key, so nothing requires it yet"
    text = f"{SEAL_FILE} covers {len(files)} files, and {SEAL_SIGNATURE_FILE} signs it{unused}; commit both"
    return Answer(0, {"files": len(files), "fingerprint": key.verification_key.fingerprint}, text)


def _check_seal(project: Project) -> Answer:
    seal = project.seal
    if seal is None:
        raise UsageError("matrix.yaml names no key to verify the seal with; everything here is unsigned")
    if seal.defect:
        return Answer(1, {"valid": False, "defect": seal.defect}, f"{seal.defect}: everything here is unsigned")
    difference = seal.compare_files((*KNOWLEDGE_FOLDERS, EVIDENCE_FOLDER))
    notes = difference.notes()
    document = {
        "valid": True,
        "files": len(seal.files),
        "changed": list(difference.changed),
        "missing": list(difference.missing),
        "unsigned": list(difference.unsigned),
    }
    return Answer(1 if notes else 0, document, "\n".join([f"{SEAL_FILE} covers {len(seal.files)} files", *notes]))


WORDS = {
    "make": Word("write a new pair of keys", make_keys, _configure_make),
    "show": Word("show the public keys that matrix.yaml names", show_keys),
    "seal": Word(
        "sign one list of the hashes of facts, rules, incidents and runs, at a release, or --check it",
        seal_release,
        _configure_seal,
    ),
}
