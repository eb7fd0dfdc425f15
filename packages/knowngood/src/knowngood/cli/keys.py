"""`knowngood keys make|show`: make a pair of keys to sign with, or show the keys that matrix.yaml names."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.core.errors import UsageError
from knowngood.core.publish_policy import SigningIdentity
from knowngood.project import release_signers
from knowngood.project.checkout import find_project
from knowngood.project.release_signers import VerificationKey

PUBLIC_SUFFIX = ".pub"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "action",
        choices=["make", "show"],
        help="make: write a new pair of keys; show: the public keys that matrix.yaml names",
    )
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="for make: the file of the private key, outside of the project "
        "(default: knowngood/release.key in XDG_CONFIG_HOME, else in ~/.config); the public key is written beside it, "
        "with .pub",
    )
    parser.add_argument(
        "--no-passphrase", action="store_true", help="for make: write the private key without encrypting it"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Make a pair of keys, or show the public ones."""
    if arguments.action == "show":
        shared_arguments.refuse_options(arguments, ("file", "no_passphrase"), "belongs to `knowngood keys make`")
        return _show_keys()
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


def _show_keys() -> Answer:
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
