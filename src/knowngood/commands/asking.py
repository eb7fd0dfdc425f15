"""What `check` and `pick` have in common: the arguments that describe a request, anywhere among the packages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.errors import UsageError

if TYPE_CHECKING:
    from knowngood.solving.query import Request


def add_request(parser: argparse.ArgumentParser) -> None:
    """The arguments of both commands."""
    parser.add_argument("requirements", nargs="*", metavar="NAME==VERSION", help="or the name of a wheel")
    parser.add_argument("--gpu", metavar="GPU", help="a card, a family or an architecture: V100, Hopper, sm_90")
    parser.add_argument("--driver", metavar="VERSION", help="the NVIDIA driver's, 580.65.06")
    parser.add_argument("--nvcc", metavar="VERSION", help="the CUDA toolkit's that compiles extensions, 12.8")
    parser.add_argument("--python", metavar="VERSION")
    parser.add_argument("--glibc", metavar="VERSION")
    parser.add_argument("--attn", metavar="NAME", help="sdpa, fa2, flash_attention_2, flex, ...")
    parser.add_argument("--with", dest="used", action="append", default=[], metavar="KEY=VALUE", help="dtype=bf16")
    intermix(parser)


def intermix(parser: argparse.ArgumentParser) -> None:
    """Let packages and options stand in any order (argparse alone takes the first run of packages only)."""
    once = parser.parse_known_args
    inside = False

    def parse(args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        nonlocal inside
        if inside:
            return once(args, namespace)
        inside = True
        try:
            return parser.parse_known_intermixed_args(args, namespace)
        finally:
            inside = False

    parser.parse_known_args = parse  # type: ignore[method-assign,assignment]


def request_of(arguments: argparse.Namespace) -> Request:
    """The request of the command line."""
    from knowngood.solving import query

    axes = {name: query.axis(name, value) for name in query.AXES if (value := getattr(arguments, name)) is not None}
    packages = [query.requirement(text, python=axes.get("python")) for text in arguments.requirements]
    for name in getattr(arguments, "files", []):
        text = sys.stdin.read() if name == "-" else _read(name)
        packages += query.listing(text, "stdin" if name == "-" else name, python=axes.get("python"))
    if getattr(arguments, "here", False):
        from knowngood import installed

        python, distributions = installed.look()
        found = {"python": python} | ({"glibc": libc} if (libc := installed.libc()) else {})
        axes = {**found, **axes}
        packages += installed.wanted(distributions)
    return query.Request(
        gpu=arguments.gpu,
        axes=axes,
        attn=None if arguments.attn is None else query.attention(arguments.attn),
        used=dict(query.condition(text) for text in arguments.used),
        packages=tuple(wanted for wanted in packages if wanted is not None),
    )


def _read(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: not UTF-8 ({error.reason} at byte {error.start})") from None
