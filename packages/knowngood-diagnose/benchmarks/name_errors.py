"""Measure `knowngood diagnose` on errors about names that are made from the atlas.

    python name_errors.py [COUNT] [SEED]

Each error is about a name that some releases of a package have and one release lacks. Its text is the one that
Python prints, below a traceback that such a failure has: in a user's script, or in a file of another package whose own
rows say that it uses the name. Half of the logs state the versions. Counted are: the right cause (this package and this
name, and whether the release is too old or too new), the right remedy (a release that has the name, or one of the
caller that does not use it), and answers that are confidently wrong (a cause that is not the one made).
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from knowngood_diagnose.failures.diagnosis import Diagnosis, LogKnowledge, diagnose_log
from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf
from knowngood_diagnose.failures.names.name_causes import explain_names
from knowngood_diagnose.failures.names.name_situation import place_of_version
from knowngood_facts.facts import atlas_lookup
from knowngood_facts.facts.atlas_lookup import parse_signature

if TYPE_CHECKING:
    from collections.abc import Iterator

    from knowngood_facts.facts.atlas_lookup import AtlasLookup

LIBRARIES = ("transformers", "trl", "peft", "accelerate", "datasets", "huggingface-hub", "liger-kernel", "optimum")
CALLERS = ("trl", "peft", "accelerate", "axolotl", "llamafactory", "ms-swift", "verl", "openrlhf", "liger-kernel")
HINTED = 0.5
"""How many tracebacks have a frame in the module of the class or function."""
OLD_PYTHON = 0.3
"""How many errors about keywords leave the class out, as Python did before 3.10."""


@dataclass(frozen=True, kw_only=True)
class MadeError:
    """An error with what is true of it."""

    log: str
    package: str
    name: str
    present: int
    """The releases of the package that have the name, as bits."""
    release: str
    kind: str
    caller: str = ""


def make_errors(count: int, seed: int) -> Iterator[MadeError]:
    """Yield errors of all kinds in turn."""
    source = random.Random(seed)  # noqa: S311 - a draw, not a secret
    makers = (make_import, make_used_import, make_module, make_attribute, make_keyword, make_model_type)
    made = 0
    while made < count:
        error = makers[made % len(makers)](source)
        if error is not None:
            made += 1
            yield error


def draw_release(source: random.Random, lookup: AtlasLookup, present: int, possible: int) -> str | None:
    """Return a release that lacks a name although it has what surrounds it."""
    places = [place for place in range(len(lookup.file.releases)) if possible >> place & 1 and not present >> place & 1]
    return lookup.file.releases[source.choice(places)] if places and present else None


def open_one(source: random.Random, names: tuple[str, ...]) -> AtlasLookup:
    """Return the atlas of one of these packages."""
    lookup = atlas_lookup.open_atlas(source.choice(names))
    assert lookup is not None
    return lookup


def write_log(source: random.Random, versions: dict[str, str], frames: list[tuple[str, str]], error: str) -> str:
    """Return a log with a traceback of frames (file, line of code); versions are left out of every second one."""
    stated = "".join(f"{name}=={version}\n" for name, version in versions.items()) if source.random() < 0.5 else ""
    lines = ["Traceback (most recent call last):"]
    for path, code in frames:
        lines += [f'  File "{path}", line {source.randint(2, 900)}, in <module>', f"    {code}"]
    return "\n".join([stated.rstrip(), *lines, error, ""])


def draw_row(source: random.Random, lookup: AtlasLookup, kinds: str) -> tuple[str, str, str, int] | None:
    """Return module, path, kind and releases of something that not all releases have."""
    modules = [name for name in lookup.file.modules() if not name.startswith("@")]
    for _ in range(60):
        module = source.choice(modules)
        rows = [row for row in lookup.file.rows(module) if row[1] in kinds and row[3] != lookup.every]
        if rows:
            path, kind, _, mask = source.choice(rows)
            return module, path, kind, mask
    return None


def make_import(source: random.Random) -> MadeError | None:
    """A script that imports a name from a module which a release has without it."""
    lookup = open_one(source, LIBRARIES)
    row = draw_row(source, lookup, "cfv")
    if row is None or not row[1].isidentifier() or row[1].startswith("_"):
        return None
    module, name = row[0], row[1]
    presence, around = lookup.find_name(f"{module}.{name}"), lookup.find_name(module)
    release = draw_release(source, lookup, presence.present, around.present & ~presence.unclear)
    if release is None:
        return None
    package, top = lookup.file.package, module.replace(".", "/")
    log = write_log(
        source,
        {package: release},
        [("/home/me/train.py", f"from {module} import {name}")],
        f"ImportError: cannot import name '{name}' from '{module}' (/opt/venv/lib/python3.10/site-packages/{top}.py)",
    )
    return MadeError(log=log, package=package, name=name, present=presence.present, release=release, kind="import")


def make_used_import(source: random.Random) -> MadeError | None:
    """A package that imports a name which a release of another package lacks."""
    caller = open_one(source, CALLERS)
    modules = [name for name in caller.file.modules() if name.startswith("@")]
    for _ in range(40):
        module = source.choice(modules)
        uses = [
            row for row in caller.file.rows(module) if ":" in row[0] and " " not in row[0] and not row[1] and not row[2]
        ]
        if not uses:
            continue
        target, _, _, callers = source.choice(uses)
        owner, _, name = target.partition(":")
        package = atlas_lookup.find_owner(owner.partition(".")[0])
        lookup = atlas_lookup.open_atlas(package) if package else None
        if lookup is None or not name.isidentifier() or package == caller.file.package:
            continue
        presence, around = lookup.find_name(f"{owner}.{name}"), lookup.find_name(owner)
        release = draw_release(source, lookup, presence.present, around.present & ~presence.unclear)
        if release is None:
            continue
        own = next(text for place, text in enumerate(caller.file.releases) if callers >> place & 1)
        path = "/opt/venv/lib/python3.10/site-packages/"
        log = write_log(
            source,
            {package or "": release, caller.file.package: own},
            [
                ("/home/me/train.py", f"import {caller.file.root}"),
                (f"{path}{module[1:].replace('.', '/')}.py", f"from {owner} import {name}"),
            ],
            f"ImportError: cannot import name '{name}' from '{owner}' ({path}{owner.replace('.', '/')}/__init__.py)",
        )
        return MadeError(
            log=log,
            package=package or "",
            name=name,
            present=presence.present,
            release=release,
            kind="used-import",
            caller=caller.file.package,
        )
    return None


def make_module(source: random.Random) -> MadeError | None:
    """A script that imports a module which a release lacks."""
    lookup = open_one(source, LIBRARIES)
    module = source.choice([name for name in lookup.file.modules() if not name.startswith("@") and "." in name])
    presence = lookup.find_name(module)
    if presence.present == lookup.every or module.partition(".")[0] != lookup.file.root:
        return None
    release = draw_release(source, lookup, presence.present, lookup.every)
    if release is None:
        return None
    package = lookup.file.package
    log = write_log(
        source,
        {package: release},
        [("/home/me/train.py", f"import {module}")],
        f"ModuleNotFoundError: No module named '{module}'",
    )
    return MadeError(log=log, package=package, name=module, present=presence.present, release=release, kind="module")


def make_attribute(source: random.Random) -> MadeError | None:
    """Code that came with a model and asks an object for an attribute which its class lacks."""
    lookup = open_one(source, LIBRARIES)
    row = draw_row(source, lookup, "fpa")
    if row is None or row[1].count(".") != 1 or row[1].split(".")[1].startswith("__"):
        return None
    module, (owner, name) = row[0], row[1].split(".")
    presence, around = lookup.find_name(f"{module}.{owner}.{name}"), lookup.find_name(f"{module}.{owner}")
    release = draw_release(source, lookup, presence.present, around.present)
    if release is None:
        return None
    package = lookup.file.package
    path = f"/opt/venv/lib/python3.10/site-packages/{module.replace('.', '/')}.py"
    log = write_log(
        source,
        {package: release},
        [
            ("/home/me/train.py", "trainer.train()"),
            *([(path, "output = self.run(batch)")] if source.random() < HINTED else []),
            ("/home/me/run.py", f"x.{name}"),
        ],
        f"AttributeError: '{owner}' object has no attribute '{name}'",
    )
    return MadeError(log=log, package=package, name=name, present=presence.present, release=release, kind="attribute")


def make_keyword(source: random.Random) -> MadeError | None:
    """A script that passes a keyword which a release's signature lacks."""
    lookup = open_one(source, LIBRARIES)
    row = draw_row(source, lookup, "f")
    if row is None or row[1].rpartition(".")[2].startswith("__") != row[1].endswith("__init__"):
        return None
    module, path = row[0], row[1]
    presence = lookup.find_name(f"{module}.{path}")
    accepted, refused, names = 0, 0, Counter[str]()
    for signature, mask in presence.signatures.items():
        names.update({name: mask.bit_count() for name in parse_signature(signature) if name.isidentifier()})
    names.pop("self", None)
    if not names:
        return None
    keyword = source.choice(sorted(names))
    for signature, mask in presence.signatures.items():
        parameters = parse_signature(signature)
        if keyword in parameters or any(name.startswith("**") for name in parameters):
            accepted |= mask
        else:
            refused |= mask
    release = draw_release(source, lookup, accepted, refused)
    if release is None:
        return None
    package = lookup.file.package
    file = f"/opt/venv/lib/python3.10/site-packages/{module.replace('.', '/')}.py"
    shown = path.rpartition(".")[2] if source.random() < OLD_PYTHON else path
    code = f"x = {path.removesuffix('.__init__').rpartition('.')[2]}({keyword}=1)"
    log = write_log(
        source,
        {package: release},
        [*([(file, "go()")] if source.random() < HINTED else []), ("/home/me/train.py", code)],
        f"TypeError: {shown}() got an unexpected keyword argument '{keyword}'",
    )
    return MadeError(log=log, package=package, name=keyword, present=accepted, release=release, kind="keyword")


def make_model_type(source: random.Random) -> MadeError | None:
    """A model whose type a release of transformers does not know."""
    lookup = atlas_lookup.open_atlas("transformers")
    assert lookup is not None
    masks: dict[str, int] = {}
    for _, (path, _, _, mask) in lookup.file.find_rows("CONFIG_MAPPING_NAMES["):
        masks[path[21:-1]] = masks.get(path[21:-1], 0) | mask
    name = source.choice(sorted(masks))
    release = draw_release(source, lookup, masks[name], lookup.every)
    if release is None:
        return None
    path = "/opt/venv/lib/python3.10/site-packages/transformers/models/auto/configuration_auto.py"
    frames = [("/home/me/train.py", "AutoConfig.from_pretrained(path)"), (path, "raise KeyError(key)")]
    text = (
        f"ValueError: The checkpoint you are trying to load has model type `{name}` but Transformers does not "
        "recognize this architecture. This could be because of an issue with the checkpoint, or because your version "
        "of Transformers is out of date."
    )
    error = source.choice([f"KeyError: '{name}'", text])
    log = write_log(source, {"transformers": release}, frames, error)
    return MadeError(
        log=log, package="transformers", name=name, present=masks[name], release=release, kind="model-type"
    )


def judge_answer(made: MadeError, diagnosis: Diagnosis) -> tuple[bool, bool, bool]:
    """Return whether cause and remedy are right, and whether the answer is confidently wrong."""
    if not diagnosis.matches:
        return False, False, False
    first = diagnosis.matches[0]
    lookup = atlas_lookup.open_atlas(made.package)
    assert lookup is not None
    releases = lookup.file.releases
    at = place_of_version(made.release, releases)
    about = made.package in f"{first.incident.title} {first.incident.because}" and made.name in first.incident.title
    # Without the release in the log it cannot be told on which side of the gap it stands.
    stated = made.package in diagnosis.versions
    newer = bool(made.present >> (at or 0))
    older = bool(made.present & ((1 << (at or 0)) - 1))
    kinds = (
        {"api-not-yet"}
        if newer and not older
        else {"api-removed"}
        if older and not newer
        else {"api-not-yet", "api-removed"}
    )
    cause = about and (not stated or first.incident.kind in kinds)
    remedy = any(
        any(SpecifierSet(text).contains(version) for place, version in enumerate(releases) if made.present >> place & 1)
        for fix in first.fix
        for name, text in fix.fix.change.items()
        if name == made.package
    ) or any(name == made.caller for fix in first.fix for name in fix.fix.change)
    return cause, cause and remedy, not about


def main() -> None:
    """Make the errors, diagnose them and print what was right, by kind."""
    count, seed = (int(text) for text in (*sys.argv[1:3], *("120", "21")[len(sys.argv[1:3]) :]))
    shelf = AtlasShelf(
        open=atlas_lookup.open_atlas, owner=atlas_lookup.find_owner, packages=atlas_lookup.list_atlas_packages()
    )
    table: dict[str, Counter[str]] = {}
    for made in make_errors(count, seed):
        diagnosis = diagnose_log(
            BytesIO(made.log.encode()),
            [],
            knowledge=LogKnowledge(explain_names=lambda errors, versions: explain_names(errors, versions, shelf)),
        )
        cause, remedy, wrong = judge_answer(made, diagnosis)
        row = table.setdefault(made.kind, Counter())
        row.update({"errors": 1, "cause": cause, "remedy": remedy, "confidently wrong": wrong})
        if not remedy or wrong:
            title = diagnosis.matches[0].incident.title if diagnosis.matches else "nothing"
            print(f"  {made.kind}: {made.package} {made.release} {made.name}: {title}")
    total = Counter[str]()
    for row in table.values():
        total.update(row)
    for kind, row in [*table.items(), ("all", total)]:
        columns = ("errors", "cause", "remedy", "confidently wrong")
        print(f"{kind:12} " + ", ".join(f"{name} {row[name]}" for name in columns))


if __name__ == "__main__":
    main()
