"""The pages of docs/incidents/ as HTML: the same source, raw HTML in it shown as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    from knowngood.incidents.model import Incident

_BANNER = re.compile(r"\A<!--.*?-->\s*# [^\n]*\n", re.DOTALL)
"""What stands above the text: who wrote it, and the title, which the site's page has already."""

_WIDE = '<div class="wide" tabindex="0" role="region" aria-label="A table, scrolls sideways">'


def incidents(known: Sequence[Incident]) -> dict[str, Markup]:
    """Incident to the body of its page."""
    from knowngood.diagnosing import pages

    around = pages.around_here()
    reader = _reader()
    return {incident.id: _html(reader, pages.page(incident, around)) for incident in known}


def _reader() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("table")


def _html(reader: MarkdownIt, text: str) -> Markup:
    from markupsafe import Markup

    parts = reader.parse(_BANNER.sub("", text))
    for block in parts:
        for part in block.children or ():
            if part.type == "link_open":
                _relink(part.attrs)
    html = str(reader.renderer.render(parts, reader.options, {}))
    html = html.replace("<table>", f"{_WIDE}<table>").replace("</table>", "</table></div>")
    return Markup(html)  # noqa: S704 - escaped by the reader


def _relink(attributes: dict[str, str | int | float]) -> None:
    """A link to another incident leads to its page here; to a document that the site does not have, nowhere."""
    target = str(attributes.get("href", ""))
    name = re.fullmatch(r"([a-z0-9-]+)\.md", target)
    if name:
        attributes["href"] = f"{name[1]}.html"
    elif "://" not in target:
        attributes.pop("href", None)
