"""The report as a person reads it on a terminal."""

from __future__ import annotations

from typing import Any

SIGNS = {"pass": "pass", "fail": "FAIL", "refused": "refused", "not-run": "-"}


def render(document: dict[str, Any]) -> str:
    """Settings and dtypes down, layouts and modes across; then the reasons, each once; then the verdict."""
    trained = [made for made in document["checks"] if made["topic"] == "training"]
    columns = list(dict.fromkeys((made["layout"], made["mode"]) for made in trained))
    rows = list(dict.fromkeys((made["setting"], made["dtype"]) for made in trained))
    cells = {(made["setting"], made["dtype"], made["layout"], made["mode"]): made for made in trained}
    heads = [
        "setting",
        "dtype",
        *(layout if mode == "full" else f"{layout}+{mode}" for layout, mode in columns),
    ]
    body = [[*row, *(_sign(cells.get((*row, *column))) for column in columns)] for row in rows]
    lines = _align([heads, *body]) if trained else []
    lines += ["", *_others(document), *_reasons(document), f"verdict: {_verdict(document['verdict'])}"]
    return "\n".join(lines)


def explain(made: dict[str, Any]) -> str:
    """Why an entry is red."""
    lines = [f"{made['id']}: {made['outcome']}: {made['reason']}"]
    if made["exception"]:
        lines.append(f"{made['exception']}: {made['message']}")
    if made["agreement"] == "disagree":
        prediction = made["predicted"]
        lines.append(f"predicted {prediction['outcome']}, because {prediction.get('because', '(no reason given)')}")
    if made.get("log_tail"):
        lines.append(made["log_tail"].strip()[-600:])
    return "\n".join(lines)


def _sign(made: Any) -> str:
    if made is None:
        return ""
    return SIGNS[made["outcome"]] + ("!" if made["agreement"] == "disagree" else "")


def _align(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def _others(document: dict[str, Any]) -> list[str]:
    others = [made for made in document["checks"] if made["topic"] != "training"]
    lines = [f"{_sign(made):8}{made['id']}{' (with a stand-in)' if made.get('stand_in') else ''}" for made in others]
    return [*lines, ""] if lines else []


def _reasons(document: dict[str, Any]) -> list[str]:
    """Each reason once, with how many checks gave it and the first of them."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for made in document["checks"]:
        if made["outcome"] != "pass":
            grouped.setdefault((made["outcome"], made["reason"]), []).append(made["id"])
    lines = []
    for (outcome, reason), ids in grouped.items():
        more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        lines.append(f"{outcome}: {reason}: {ids[0]}{more}")
    return [*lines, ""] if lines else []


def _verdict(verdict: dict[str, Any]) -> str:
    return f"ok ({verdict['text']})" if verdict["ok"] else f"NOT OK, {verdict['domain']}: {verdict['text']}"
