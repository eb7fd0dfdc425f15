"""The incidents' signatures and what reads versions out of a log, for the browser. Pure.

Nothing is written a second time: the patterns are those of `knowngood.diagnosing.signature` and `versions`,
translated. The browser has logs as strings of bytes, so a pattern over bytes means the same there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from knowngood.diagnosing import frames, log, signature
from knowngood.diagnosing import versions as diagnose_versions
from knowngood.diagnosing.signature import Signature

if TYPE_CHECKING:
    from knowngood.incidents.model import Incident

_SPACE = r" \t\n\r\f\v"
_PIECES = re.compile(r"\\x[0-9a-f]{2}|\\.|\(\?[a-z]*:|\(\?<?[=!]|.", re.DOTALL)
_POSSESSIVE = re.compile(r"(?<!\\)([+*?}])\+")


def javascript(pattern: bytes) -> str:
    r"""A pattern over bytes as JavaScript has it: `\s` is ASCII's, `(?i:...)` is spelled out, `$` may precede `\n`."""
    made: list[str] = []
    folds, inside = [False], False
    members: list[str] = []
    """Of the class that is being read."""
    for piece in _PIECES.findall(pattern.decode("latin-1")):
        if piece == r"\s":
            made.append(_SPACE if inside else f"[{_SPACE}]")
        elif inside:
            inside = piece != "]"
            letters = [it for it in members if len(it) == 1]
            if not inside and folds[-1] and any(map(str.isalpha, letters)):
                made += [it.swapcase() for it in letters]
            made.append(piece)
            members.append(piece)
        elif piece == "[":
            inside, members = True, []
            made.append(piece)
        elif piece[0] == "(":
            folds.append(folds[-1] or piece == "(?i:")
            made.append("(?:" if piece == "(?i:" else piece)
        elif piece == ")":
            folds.pop()
            made.append(piece)
        elif piece == "$":
            made.append(r"(?=\n?$)")
        else:
            made.append(f"[{piece.lower()}{piece.upper()}]" if folds[-1] and piece.isalpha() else piece)
    return "".join(made)


def segment(pattern: bytes) -> str:
    """A part of a signature: JavaScript has no possessive repetition, a look ahead that is taken back is the same."""
    made, number = "", 0
    rest = pattern
    placeholders = signature._PLACEHOLDERS.values()  # noqa: SLF001 - the same compiled form
    while rest:
        starts = [(at, text) for text in placeholders if (at := rest.find(text)) >= 0]
        at, text = min(starts, key=lambda pair: (pair[0], -len(pair[1])), default=(len(rest), b""))
        made += javascript(rest[:at])
        if text:
            number += 1
            made += f"(?=(?<p{number}>{_POSSESSIVE.sub(lambda m: m[1], javascript(text))}))\\k<p{number}>"
        rest = rest[at + len(text) :]
    return made


def document(known: Sequence[Incident]) -> dict[str, Any]:
    """What `static/diagnose.js` needs."""
    compiled = [item for incident in known for item in incident.marks]
    versions = diagnose_versions
    patterns = {
        name.lstrip("_").lower(): javascript(value.pattern)
        for name, value in vars(versions).items()
        if isinstance(value, re.Pattern) and isinstance(value.pattern, bytes)
    }
    return {
        "limits": {
            "block": log.BLOCK,
            "overlap": log.OVERLAP,
            "around": log.AROUND,
            "looks": log.MOST_LOOKS,
            "steps": log.MOST_STEPS,
            "gap": signature.GAP,
            "head": versions.HEAD,
            "most": versions.MOST,
        },
        "prefix": javascript(signature._PREFIX.pattern),  # noqa: SLF001
        "ansi": javascript(log._ANSI.pattern),  # noqa: SLF001
        "names": dict(versions._NAMES),  # noqa: SLF001
        "patterns": patterns,
        "signatures": [_signature(item) for item in compiled],
        "incidents": list(_incidents(known)),
        "frames": [mark.decode() for mark in frames.FRAME_MARKS],
    }


def _signature(item: Signature) -> dict[str, Any]:
    return {
        "words": [word.decode("latin-1") for word in item.words],
        "literal": item.literal.decode("latin-1"),
        "segments": [[segment(part), len(part)] for part in item.segments],
    }


def _incidents(known: Iterable[Incident]) -> Iterator[dict[str, Any]]:
    number = 0
    for incident in known:
        shown, context = len(incident.signatures), len(incident.context)
        yield {
            "id": incident.id,
            "title": incident.title,
            "severity": str(incident.severity),
            "component": incident.component,
            "because": incident.because,
            "confidence": incident.confidence,
            "signatures": [number, number + shown],
            "context": [number + shown, number + shown + context],
            "beside": [len(item.beside) for item in incident.signatures],
            "frames": [number + len(incident.marks) - len(incident.frames), number + len(incident.marks)],
            "affected": [
                {name: [str(clause) for clause in specifier] for name, specifier in item.items()}
                for item in incident.affected
            ],
            "fix": [fix.document() for fix in incident.fix],
            "particular": context * 40 + max((len(item.text) for item in incident.signatures), default=0),
        }
        number += len(incident.marks)
