"""What a lock file installs for one Python on Linux: uv.lock, and pylock.toml (PEP 751). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from knowngood.compat.project_file import TomlText, parse_toml, refuse_unknown_names, settle_python
from knowngood.compat.query import UnreadLine, marker_environment, pinned_package
from knowngood.core.errors import UsageError
from knowngood.core.package_names import canonical_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.pylock import Package

    from knowngood.compat.requirement_lines import RequirementReader


def read_uv_lock(reader: RequirementReader, text: str, origin: str) -> None:
    """Read a uv.lock: what its projects require, followed to the end for the Python that is asked for."""
    document = parse_toml(text, origin)
    packages = document.data.get("package")
    if not isinstance(packages, list) or not all(isinstance(item, dict) and "name" in item for item in packages):
        raise UsageError(f"{origin}: a uv.lock has a [[package]] with a name for each package; this one has none")
    settle_python(reader, document.data.get("requires-python"), origin)
    _UvLock(reader=reader, document=document, packages=packages).read()


@dataclass(kw_only=True)
class _UvLock:
    """One uv.lock on its way into a list."""

    reader: RequirementReader
    document: TomlText
    packages: list[dict[str, Any]]
    chosen: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    done: set[tuple[str, str, str]] = field(default_factory=set)

    def read(self) -> None:
        """Add every package that the projects of the lock install."""
        roots = [item for item in self.packages if {"virtual", "editable"} & _source(item).keys()]
        if not roots:
            raise UsageError(
                f"{self.document.file}: no package of this lock is a project, so nothing asks for the others"
            )
        wanted = self.reader.options
        extras = [canonical_name(name) for name in wanted.extras]
        groups = [canonical_name(name) for name in wanted.groups]
        refuse_unknown_names(extras, _names(roots, "optional-dependencies"), "extra", self.document.file)
        refuse_unknown_names(groups, _names(roots, "dev-dependencies"), "group", self.document.file)
        for root in roots:
            self._follow(root.get("dependencies", []))
            for extra in extras:
                self._follow(root.get("optional-dependencies", {}).get(extra, []))
            for group in groups:
                self._follow(root.get("dev-dependencies", {}).get(group, []))
        for (name, version), item in sorted(self.chosen.items()):
            if item not in roots:
                self._add(name, version, item)

    def _follow(self, dependencies: Iterable[Mapping[str, Any]]) -> None:
        left = list(dependencies)
        while left:
            dependency = left.pop()
            if not self._holds(str(dependency.get("marker", ""))):
                continue
            for item in self._matching(dependency):
                version = str(item.get("version", ""))
                self.chosen[item["name"], version] = item
                for extra in ("", *dependency.get("extra", [])):
                    key = (item["name"], version, extra)
                    if key not in self.done:
                        self.done.add(key)
                        left += (
                            item.get("optional-dependencies", {}).get(extra, [])
                            if extra
                            else item.get("dependencies", [])
                        )

    def _matching(self, dependency: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            item
            for item in self.packages
            if item["name"] == dependency.get("name")
            and dependency.get("version") in (None, item.get("version"))
            and dependency.get("source") in (None, item.get("source"))
        ]

    def _holds(self, marker: str) -> bool:
        """Whether a marker holds; an extra of a project that conflicts with others is extra-N-PROJECT-NAME in it."""
        if not marker:
            return True
        from packaging.markers import Marker

        parsed, environment = Marker(marker), marker_environment(self.reader.python)
        names = [
            f"extra-{len(item['name'])}-{item['name']}-{canonical_name(extra)}"
            for item in self.packages
            for extra in (*self.reader.options.extras, *self.reader.options.groups)
            if "extra-" in marker
        ]
        return any(parsed.evaluate(environment | {"extra": name}) for name in ("", *names))

    def _add(self, name: str, version: str, item: Mapping[str, Any]) -> None:
        place, _ = self.document.place(name)
        public, _, local = version.partition("+")
        if version:
            self.reader.result.packages.append(pinned_package(name, public, local or None, explicit=False))
        else:
            what = next(iter(_source(item)), "its source")
            self.reader.add_unread(place, f"the lock gives it no version ({what})", name)


def _source(item: Mapping[str, Any]) -> Mapping[str, Any]:
    source = item.get("source", {})
    return source if isinstance(source, dict) else {}


def _names(roots: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    return [name for root in roots for name in root.get(key, {})]


def read_pylock(reader: RequirementReader, text: str, origin: str) -> None:
    """Read a pylock.toml: the packages whose markers hold for the Python, the extras and the groups asked for."""
    from packaging.pylock import Pylock, PylockUnsupportedVersionError, PylockValidationError

    document = parse_toml(text, origin)
    try:
        lock = Pylock.from_dict(document.data)
    except (PylockValidationError, PylockUnsupportedVersionError) as error:
        raise UsageError(f"{origin}: not a pylock.toml as PEP 751 says: {error}") from None
    settle_python(reader, str(lock.requires_python) if lock.requires_python else None, origin)
    wanted = reader.options
    refuse_unknown_names(map(canonical_name, wanted.extras), list(lock.extras or ()), "extra", origin)
    refuse_unknown_names(wanted.groups, list(lock.dependency_groups or ()), "group", origin)
    environment: dict[str, Any] = {
        **marker_environment(reader.python),
        "extras": frozenset(map(canonical_name, wanted.extras)),
        "dependency_groups": frozenset(wanted.groups or lock.default_groups or ()),
    }
    for package in lock.packages:
        if package.marker is None or package.marker.evaluate(environment, context="lock_file"):
            _add_locked(reader, package, document)


def _add_locked(reader: RequirementReader, package: Package, document: TomlText) -> None:
    if package.version is None:
        place: UnreadLine = document.place(package.name)[0]
        kind = next((kind for kind in ("vcs", "directory", "archive") if getattr(package, kind) is not None), "source")
        reader.add_unread(place, f"the lock gives it no version ({kind})", package.name)
        return
    public, local = package.version.public, package.version.local
    reader.result.packages.append(pinned_package(package.name, public, local, explicit=False))
