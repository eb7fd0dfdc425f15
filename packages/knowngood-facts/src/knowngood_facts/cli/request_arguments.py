"""The arguments of `check`, `pick` and `diagnose` that describe a request; options may stand between the packages."""

from __future__ import annotations

import argparse
import codecs
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.core.data_files import refuse_long_numbers
from knowngood.core.errors import UsageError
from knowngood.core.hosts import DEFAULT_HOST, detect_host_architecture, parse_host
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_facts.facts.package_metadata import read_package_metadata

if TYPE_CHECKING:
    from knowngood_facts.compat.query import Query
    from knowngood_facts.compat.requirement_lines import RequirementList


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that describe a combination: packages, axes and conditions of use."""
    parser.add_argument(
        "requirements",
        nargs="*",
        metavar="NAME==VERSION",
        help="a package, or the file name of a wheel; one may be a card instead, as in 4090 torch==2.11.0",
    )
    add_use_arguments(parser)
    parser.add_argument("--driver", metavar="VERSION", help="the version of the NVIDIA driver, such as 580.65.06")
    parser.add_argument("--python", metavar="VERSION")
    parser.add_argument(
        "--host",
        metavar="ARCH",
        help="the host's processor: x86-64 or aarch64 (default: the card's, or this machine's)",
    )
    parser.add_argument("--attn", metavar="NAME", help="sdpa, fa2, flash_attention_2, flex, ...")
    allow_intermixed_arguments(parser)


def add_use_arguments(parser: argparse.ArgumentParser, *, also: str = "") -> None:
    """Add `--gpu` and `--with`; `also` is what else the command takes for `--with`, for its help."""
    parser.add_argument("--gpu", metavar="GPU", help="a card, a family or an architecture: V100, Hopper, sm_90")
    parser.add_argument(
        "--with",
        dest="used",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"how it is used: dtype=bf16{also}",
    )


def add_list_argument(parser: argparse.ArgumentParser, *, also: str = "") -> None:
    """Add `-r`, a list of packages in a file; `also` is what else the command says of it in its help."""
    parser.add_argument(
        *("-r", "--requirements"),
        dest="files",
        action="append",
        default=[],
        metavar="FILE",
        help="a requirements file, pyproject.toml, uv.lock, pylock.toml or environment.yml; - is stdin" + also,
    )


def allow_intermixed_arguments(parser: argparse.ArgumentParser) -> None:
    """Allow packages and options in any order; argparse itself accepts packages in one place only."""
    parse_once = parser.parse_known_args
    inside = False

    def parse(args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        nonlocal inside
        if inside:
            return parse_once(args, namespace)
        inside = True
        try:
            return parser.parse_known_intermixed_args(args, namespace)
        finally:
            inside = False

    parser.parse_known_args = parse  # type: ignore[method-assign,assignment]


@dataclass(frozen=True, kw_only=True)
class StatedRequest:
    """What a command line says of a request, as text."""

    requirements: Sequence[str] = ()
    used: Sequence[str] = ()
    """The conditions of use, as `KEY=VALUE`."""
    files: Sequence[str] = ()
    """The lists of packages, as names of files."""
    here: bool = False
    """Whether what is installed beside this Python counts too."""
    gpu: str | None = None
    host: str | None = None
    """The host's processor, `None` for that of the card where it has its own, or else of this machine."""
    attn: str | None = None
    axes: Mapping[str, str | None] = field(default_factory=dict)
    """Axis -> its version, `None` when it is not stated."""
    extras: Sequence[str] = ()
    groups: Sequence[str] = ()


def request_from_arguments(arguments: argparse.Namespace) -> Query:
    """Return the request that the command line of `check`, `pick` or `add` describes."""
    words = list(arguments.requirements)
    if arguments.gpu is None and (card := next(filter(_is_card, words), None)):
        words.remove(card)
        arguments.gpu = card
    return parse_request(
        StatedRequest(
            requirements=words,
            used=arguments.used,
            files=getattr(arguments, "files", ()),
            here=getattr(arguments, "here", False),
            gpu=arguments.gpu,
            host=arguments.host,
            attn=arguments.attn,
            axes={
                "driver": arguments.driver,
                "nvcc": getattr(arguments, "nvcc", None),
                "python": arguments.python,
                "glibc": getattr(arguments, "glibc", None),
            },
            extras=getattr(arguments, "extras", ()),
            groups=getattr(arguments, "groups", ()),
        )
    )


_CARD_LIKE = lazy_pattern(r"[A-Za-z _-]*[0-9][A-Za-z0-9 _.-]*")
_UNKNOWN_CARD = lazy_pattern(r"[0-9]+|.* .*|(?:[a-z]|gb|gh|rtx|gtx)-?[0-9]{2,4}(?:ti)?", re.IGNORECASE)
"""A number and several words, which are no package, and names like `K80` and `RTX4900`."""


def _is_card(word: str) -> bool:
    """Return whether a word without a release is the name of a card or an architecture: `4090`, `"RTX 4090"`, `sm_90`.

    So is one that no matrix has and that is like no package, `4900` or `"Tesla K80"`: it is answered with the nearest.
    The matrix is asked only about words with a digit; hardly a package that is named without a release has one.
    """
    if not _CARD_LIKE.fullmatch(word):
        return False
    from knowngood.core.gpus import GpuNameKind
    from knowngood.project.checkout import find_project

    match = find_project().matrix.gpu_catalog.name_table.match(word)
    if match.kind is not GpuNameKind.UNKNOWN:
        return match.kind is not GpuNameKind.INSTANCE
    return bool(_UNKNOWN_CARD.fullmatch(word)) and read_package_metadata(word.split(maxsplit=1)[0]) is None


def _machine_condition(host: str | None) -> dict[str, str]:
    """Return the condition of use that a host is; none for x86-64 that nobody stated, which the card may overrule."""
    from knowngood_facts.compat.query import MACHINE

    here = detect_host_architecture() if sys.platform == "linux" else None
    if host is None and here in (None, DEFAULT_HOST):
        return {}
    return {MACHINE: (parse_host(host) if host else here or DEFAULT_HOST).machine}


def parse_request(stated: StatedRequest) -> Query:
    """Return the request that these texts describe; raises `UsageError` for one that cannot be read."""
    from knowngood_facts.compat import query

    used = dict(query.parse_use_condition(text) for text in stated.used)
    axes = {name: query.parse_axis_version(name, value) for name, value in stated.axes.items() if value is not None}
    listed = [_read_list(name, stated, axes.get("python")) for name in stated.files]
    if stated.here:
        from knowngood_facts import python_environment

        python, distributions = python_environment.read_installed_packages()
        installed = {"python": python} | ({"glibc": libc} if (libc := python_environment.glibc_release()) else {})
        axes = {**installed, **axes}
        used = dict([query.WHEEL_AT_HAND]) | used  # what is installed need not be compiled
        listed.append(python_environment.list_installed_packages(distributions))
    of_lists = [item.python for item in listed if item.python is not None]
    if of_lists and "python" not in axes:
        axes["python"] = query.parse_axis_version("python", of_lists[0])
    # A package at an address (`torch @ https://...`) has the release that the address names, or an unread one.
    addresses = [text for text in stated.requirements if "@" in text or "://" in text]
    listed += [_parse_list("\n".join(addresses), "arguments", stated, axes.get("python"))] if addresses else []
    named = [
        query.parse_requirement(text, python=axes.get("python"))
        for text in stated.requirements
        if text not in addresses
    ]
    attn, hub_kernel = query.parse_stated_attention(stated.attn)
    return query.Query(
        gpu=stated.gpu,
        axes=axes,
        attn=attn,
        hub_kernel=hub_kernel,
        conditions=used | _machine_condition(stated.host),
        packages=(*filter(None, named), *(package for item in listed for package in item.packages)),
        constraints=tuple(package for item in listed for package in item.constraints),
        unread=tuple(line for item in listed for line in item.unread),
        notes=tuple(note for item in listed for note in item.notes),
    )


def _read_list(name: str, stated: StatedRequest, python: str | None) -> RequirementList:
    """Return what one file of `-r` asks for."""
    text = _decode_text(sys.stdin.buffer.read(), "stdin") if name == "-" else _read_text(name)
    return _parse_list(text, "stdin" if name == "-" else name, stated, python)


def _parse_list(text: str, origin: str, stated: StatedRequest, python: str | None) -> RequirementList:
    from knowngood_facts.compat.list_formats import parse_requirement_file
    from knowngood_facts.compat.requirement_lines import ListOptions

    options = ListOptions(
        python=python,
        extras=tuple(stated.extras),
        groups=tuple(stated.groups),
        environ=os.environ,
        read=_read_if_there,
    )
    return parse_requirement_file(text, origin, options)


def _read_if_there(name: str) -> str | None:
    return _read_text(name) if Path(name).is_file() else None


def _read_text(name: str) -> str:
    try:
        content = Path(name).read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        raise UsageError(f"there is no file {name}; -r takes a file of requirements, or - for stdin") from None
    return _decode_text(content, name)


def _decode_text(content: bytes, name: str) -> str:
    """Return the text of a file: UTF-8, or UTF-16 with its mark, as PowerShell writes it."""
    marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
    refuse_long_numbers(text, name)
    return text
