"""The incidents on the site: their pages as HTML, and their signatures for the page that diagnoses a log.

The HTML has the same source as docs/incidents/; raw HTML in it is shown as text. The signatures and the patterns that
read versions out of a log are those of `incident` and `log_versions`, translated to JavaScript. The browser keeps
logs as strings of bytes, so a pattern over bytes has the same meaning there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from knowngood_diagnose.failures.logs import log_scan, log_versions
from knowngood_facts.compat import incident as incident_module
from knowngood_pages.incident_pages import load_incident_context, render_incident_page

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from knowngood_facts.compat.incident import Incident, Signature

_PAGE_HEADER = re.compile(r"\A<!--.*?-->\s*# [^\n]*\n", re.DOTALL)
"""The top of a page, up to its title. The site's page has a title of its own."""

_WIDE_TABLE = '<div class="wide" tabindex="0" role="region" aria-label="A table, scrolls sideways">'


def render_incident_bodies(known: Sequence[Incident]) -> dict[str, Markup]:
    """Return the body of each incident's page as HTML, by the id of the incident."""
    context = load_incident_context()
    return {incident.id: render_page_body(render_incident_page(incident, context)) for incident in known}


def find_page_title(text: str) -> str:
    """Return the title of a page of docs/, its first heading."""
    return next(line.removeprefix("# ") for line in text.splitlines() if line.startswith("# "))


def render_page_body(text: str) -> Markup:
    """Return a page of docs/ as HTML, without the comment and the title at its top."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    parts = reader.parse(link_sources(_PAGE_HEADER.sub("", text)))
    for block in parts:
        for part in block.children or ():
            if part.type == "link_open":
                _relink(part.attrs)
    html = str(reader.renderer.render(parts, reader.options, {}))
    html = html.replace("<table>", f"{_WIDE_TABLE}<table>").replace("</table>", "</table></div>")
    return Markup(html)  # noqa: S704 - escaped by the reader


_SOURCES = "## How we know"
_THREAD = re.compile(r"^- ([\w.-]+/[\w.-]+)#(\d+)$", re.MULTILINE)


def link_sources(text: str) -> str:
    """Make the sources of an incident that are threads on GitHub (`owner/name#1`) links in the Markdown of its page."""
    before, title, sources = text.partition(_SOURCES)
    return before + title + _THREAD.sub(r"- [\1#\2](https://github.com/\1/issues/\2)", sources)


def _relink(attributes: dict[str, str | int | float]) -> None:
    """Make links to pages beside this one lead to their pages here; remove links to documents that are not there."""
    target = str(attributes.get("href", ""))
    name = re.fullmatch(r"([a-z0-9-]+)\.md", target)
    if name:
        attributes["href"] = f"{name[1]}.html"
    elif "://" not in target:
        attributes.pop("href", None)


_SPACE = r" \t\n\r\f\v"
_PIECES = re.compile(r"\\x[0-9a-f]{2}|\\.|\(\?[a-z]*:|\(\?<?[=!]|.", re.DOTALL)
_POSSESSIVE = re.compile(r"(?<!\\)([+*?}])\+")


def javascript_pattern(pattern: bytes) -> str:
    r"""Translate a pattern over bytes: `\s` becomes that of ASCII, `(?i:...)` is spelled out, `$` may precede `\n`."""
    parts: list[str] = []
    folds, inside = [False], False
    members: list[str] = []
    """The members of the character class that is being read."""
    for piece in _PIECES.findall(pattern.decode("latin-1")):
        if piece == r"\s":
            parts.append(_SPACE if inside else f"[{_SPACE}]")
        elif inside:
            inside = piece != "]"
            letters = [it for it in members if len(it) == 1]
            if not inside and folds[-1] and any(map(str.isalpha, letters)):
                parts += [it.swapcase() for it in letters]
            parts.append(piece)
            members.append(piece)
        elif piece == "[":
            inside, members = True, []
            parts.append(piece)
        elif piece[0] == "(":
            folds.append(folds[-1] or piece == "(?i:")
            parts.append("(?:" if piece == "(?i:" else piece)
        elif piece == ")":
            folds.pop()
            parts.append(piece)
        elif piece == "$":
            parts.append(r"(?=\n?$)")
        else:
            parts.append(f"[{piece.lower()}{piece.upper()}]" if folds[-1] and piece.isalpha() else piece)
    return "".join(parts)


def javascript_segment(pattern: bytes) -> str:
    """Translate a part of a signature.

    JavaScript has no possessive repetition; a lookahead and a back reference to its match have the same effect.
    """
    translated, number = "", 0
    rest = pattern
    placeholders = incident_module._PLACEHOLDERS.values()  # noqa: SLF001 - the same compiled form
    while rest:
        starts = [(at, text) for text in placeholders if (at := rest.find(text)) >= 0]
        at, text = min(starts, key=lambda pair: (pair[0], -len(pair[1])), default=(len(rest), b""))
        translated += javascript_pattern(rest[:at])
        if text and not _POSSESSIVE.search(text.decode()):
            translated += javascript_pattern(text)  # it may give letters back to what follows
        elif text:
            number += 1
            translated += f"(?=(?<p{number}>{_POSSESSIVE.sub(lambda m: m[1], javascript_pattern(text))}))\\k<p{number}>"
        rest = rest[at + len(text) :]
    return translated


def browser_signatures(known: Sequence[Incident]) -> dict[str, Any]:
    """Return the data that `static/diagnose.js` needs."""
    compiled = [item for incident in known for item in incident.marks]
    patterns = {
        name.lstrip("_").lower(): javascript_pattern(value.pattern)
        for name, value in vars(log_versions).items()
        if isinstance(getattr(value, "pattern", None), bytes)  # compiled at its first use, so of no class of `re`
    }
    return {
        "limits": {
            "block": log_scan.BLOCK,
            "overlap": log_scan.OVERLAP,
            "around": log_scan.AROUND,
            "looks": log_scan.MOST_COMPARISONS,
            "steps": log_scan.MOST_STEPS,
            "gap": incident_module.GAP,
            "head": log_versions.HEAD,
            "most": log_versions.MOST,
        },
        "prefix": javascript_pattern(incident_module._PREFIX.pattern),  # noqa: SLF001
        "ansi": javascript_pattern(log_scan._ANSI.pattern),  # noqa: SLF001
        "names": dict(log_versions._NAMES),  # noqa: SLF001
        "patterns": patterns,
        "signatures": [_signature_data(item) for item in compiled],
        "incidents": list(_incident_data(known)),
        "frames": [mark.decode() for mark in log_versions.FRAME_MARKS],
    }


def _signature_data(item: Signature) -> dict[str, Any]:
    return {
        "words": [word.decode("latin-1") for word in item.words],
        "literal": item.literal.decode("latin-1"),
        "segments": [[javascript_segment(part), len(part)] for part in item.segments],
    }


def _incident_data(known: Iterable[Incident]) -> Iterator[dict[str, Any]]:
    number = 0
    for incident in known:
        shown, context = len(incident.signatures), len(incident.context)
        frames = number + len(incident.marks) - len(incident.frames)
        yield {
            "id": incident.id,
            "title": incident.title,
            "kind": str(incident.kind),
            "severity": str(incident.severity),
            "component": incident.component,
            "because": incident.because,
            "confidence": incident.confidence,
            "signatures": [number, number + shown],
            "context": [number + shown, number + shown + context],
            "beside": [len(item.beside) for item in incident.signatures],
            "without": [frames - len(incident.without), frames],
            "frames": [frames, number + len(incident.marks)],
            "affected": [
                {name: [str(clause) for clause in specifier] for name, specifier in item.items()}
                for item in incident.affected
            ],
            "fix": [fix.document() for fix in incident.fix],
            "particular": [context * 40, *(len(item.text) for item in incident.signatures)],
        }
        number += len(incident.marks)
