"""The arguments of `check` and `pick` that describe a request; options may stand between the packages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import UsageError

if TYPE_CHECKING:
    from knowngood.compat.query import Query


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that both commands have."""
    parser.add_argument(
        "requirements", nargs="*", metavar="NAME==VERSION", help="a package, or the file name of a wheel"
    )
    parser.add_argument("--gpu", metavar="GPU", help="a card, a family or an architecture: V100, Hopper, sm_90")
    parser.add_argument("--driver", metavar="VERSION", help="the version of the NVIDIA driver, such as 580.65.06")
    parser.add_argument(
        "--nvcc", metavar="VERSION", help="the version of the CUDA toolkit that compiles extensions, such as 12.8"
    )
    parser.add_argument("--python", metavar="VERSION")
    parser.add_argument("--glibc", metavar="VERSION")
    parser.add_argument("--attn", metavar="NAME", help="sdpa, fa2, flash_attention_2, flex, ...")
    parser.add_argument(
        "--with", dest="used", action="append", default=[], metavar="KEY=VALUE", help="how it is used: dtype=bf16"
    )
    allow_intermixed_arguments(parser)


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


def request_from_arguments(arguments: argparse.Namespace) -> Query:
    """Return the request that the command line describes."""
    from knowngood.compat import query
    from knowngood.compat.requirement_lines import parse_package_list

    versions = {
        "driver": arguments.driver,
        "nvcc": arguments.nvcc,
        "python": arguments.python,
        "glibc": arguments.glibc,
    }
    axes = {name: query.parse_axis_version(name, value) for name, value in versions.items() if value is not None}
    packages = [query.parse_requirement(text, python=axes.get("python")) for text in arguments.requirements]
    unread: list[query.UnreadLine] = []
    for name in getattr(arguments, "files", []):
        text = sys.stdin.read() if name == "-" else _read_text(name)
        origin = "stdin" if name == "-" else name
        requirements = parse_package_list(text, origin, python=axes.get("python"), read=_read_if_there)
        packages += requirements.packages
        unread += requirements.unread
    if getattr(arguments, "here", False):
        from knowngood.doctor import python_environment

        python, distributions = python_environment.read_installed_packages()
        installed = {"python": python} | ({"glibc": libc} if (libc := python_environment.glibc_release()) else {})
        axes = {**installed, **axes}
        packages += python_environment.pin_installed_packages(distributions)
    return query.Query(
        gpu=arguments.gpu,
        axes=axes,
        attn=None if arguments.attn is None else query.parse_attention(arguments.attn),
        conditions=dict(query.parse_use_condition(text) for text in arguments.used),
        packages=tuple(package for package in packages if package is not None),
        unread=tuple(unread),
    )


def _read_if_there(name: str) -> str | None:
    return _read_text(name) if Path(name).is_file() else None


def _read_text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise UsageError(f"there is no file {name}; -r takes a requirements file, or - for stdin") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
