"""`knowngood seal`: sign one list of the hashes of facts, rules, incidents and runs, at a release."""

from __future__ import annotations

import argparse

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.core.errors import UsageError
from knowngood.project import release_seal, release_signers
from knowngood.project.checkout import Project, find_checkout, find_project
from knowngood.project.release_seal import EVIDENCE_FOLDER, KNOWLEDGE_FOLDERS, SEAL_FILE, SEAL_SIGNATURE_FILE


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    shared_arguments.add_signing_key(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; verify the signature, and list what was changed or added after it was made",
    )


def run(arguments: argparse.Namespace) -> Answer:
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
