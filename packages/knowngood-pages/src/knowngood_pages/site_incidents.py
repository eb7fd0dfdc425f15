"""The pages of incidents and of trainers on the site: Markdown as HTML; raw HTML in it is shown as text."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from markupsafe import Markup

from knowngood_pages.incident_pages import load_incident_context, render_incident_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knowngood_facts.compat.incident import Incident

_PAGE_HEADER = re.compile(r"\A<!--.*?-->\s*# [^\n]*\n", re.DOTALL)
"""The top of a page, up to its title. The site's page has a title of its own."""

_WIDE_TABLE = '<div class="wide" tabindex="0" role="region" aria-label="Table {}, scrolls sideways">'


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
    numbers = itertools.count(1)
    html = re.sub("<table>", lambda _: f"{_WIDE_TABLE.format(next(numbers))}<table>", html)
    html = html.replace("</table>", "</table></div>")
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
