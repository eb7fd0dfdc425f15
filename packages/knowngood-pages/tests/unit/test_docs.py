"""What the documents tell people to type exists."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

from knowngood.cli import main
from knowngood.core.errors import UsageError
from knowngood_pages import fault_totals

ROOT = Path(__file__).resolve().parents[4]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "smoke_tests/smoke_tests/README.md"])
SOURCE = re.compile(r"(?<![\w/])(?:packages/[\w-]+/|src/knowngood|benchmarks|scripts|tests/\w+)[\w/-]*/[\w/]+\.py")
SESSIONS = {
    next(
        (k.value.value for d in node.decorator_list if isinstance(d, ast.Call) for k in d.keywords if k.arg == "name"),
        node.name,
    )
    for node in ast.parse((ROOT / "noxfile.py").read_text()).body
    if isinstance(node, ast.FunctionDef) and any("session" in ast.unparse(d) for d in node.decorator_list)
}


def snippets(text):
    """Inline code, and the lines of shell blocks with their continuations joined."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def commands(document, program):
    for snippet in snippets(document.read_text()):
        for match in re.finditer(rf"(?:^|&& |\(|/){program} ((?:'[^']*'|[^&|;)`'])*)", snippet):
            yield match[1].strip()


PRESENT = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]
"""The documents about this program as it is; the changelog names commands of its time."""


def test_knowngood_commands_parse():
    breaches = []
    for document in PRESENT:
        for text in commands(document, "knowngood"):
            words = [word for word in shlex.split(text, comments=True) if word not in ("...", "…")]
            if not words or (words[0] not in main.all_commands() and not re.fullmatch(r"[a-z][a-z-]*", words[0])):
                continue
            words = [re.sub(r"<id>|ID|CELL|SELECT", "default", word) for word in words]
            try:
                main.parse_words(words, words[0] if words[0] in main.all_commands() else None)
            except (SystemExit, UsageError) as error:
                breaches.append(f"{document.relative_to(ROOT)}: `knowngood {text}` is refused: {error}")
    assert not breaches, "\n".join(breaches)


def test_the_example_in_the_help_of_each_command_parses():
    for name, entry in main.all_commands().items():
        words = shlex.split(entry.example)
        assert words[0] == name
        main.parse_words(words, name)


def test_a_command_of_another_distribution_is_known_to_the_product():
    named = {word for words in main.COMPANIONS.values() for word in words}
    assert named == main.all_commands().keys() - main.COMMANDS.keys()


def test_nox_sessions_exist():
    named = [
        (document.relative_to(ROOT), match[1])
        for document in DOCUMENTS
        for text in commands(document, "nox")
        if (match := re.match(r"-s (\S+)", text))
    ]
    assert named, "the pattern finds them"
    missing = [f"{document}: there is no session {name}" for document, name in named if name not in SESSIONS]
    assert not missing, "\n".join(missing)


def test_the_readme_has_the_two_commands_of_ci():
    text = (ROOT / "README.md").read_text()
    for mark in ("first", "second"):
        assert re.search(rf"<!-- ci: {mark} -->\n```sh\n\S.*\n```", text)


def test_the_summary_of_build_matrix_has_the_columns_that_are_printed():
    from knowngood.cli import build_matrix
    from knowngood.project.checkout import Project

    header = build_matrix.format_results([], Project(ROOT)).splitlines()[0].split()
    assert any(line.split() == header for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines())


def test_a_sample_of_check_is_what_is_printed(capsys):
    """`[...]` stands for the rest of a line; lines may be left out at the end."""
    text = (ROOT / "docs/check.md").read_text()
    samples = re.findall(r"^```\n\$ knowngood (.*)\n((?:.*\n)+?)```", text, re.MULTILINE)
    assert samples, "the pattern finds them"
    for command, shown in samples:
        main.main(shlex.split(command))
        printed = capsys.readouterr().out.splitlines()
        for line, whole in zip(shown.splitlines(), printed, strict=False):
            start, left_out, _ = line.partition("[...]")
            assert whole.startswith(start) if left_out else whole == line


def test_the_first_command_is_on_the_first_screen_of_the_readme():
    """GitHub shows about 30 lines of text above the fold."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert next(number for number, line in enumerate(lines) if "knowngood run" in line) < 12
    assert len(lines) <= 65  # a screen and a half, with the picture


def test_links_between_documents_lead_somewhere():
    for document in PRESENT:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_links_into_documents_lead_to_headings():
    def anchors(path):
        titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
        plain = (re.sub(r"`|\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
        return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}

    for document in PRESENT:
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", document.read_text()):
            place = document.parent / target if target else document
            assert place.suffix != ".md" or anchor in anchors(place), f"{document.name} links to {target}#{anchor}"


def test_source_files_that_texts_name_are_there():
    texts = [*PRESENT, ROOT / "matrix.yaml", *(ROOT / "packages/knowngood-facts/rules").glob("*.yaml")]
    named = {(path, name) for path in texts for name in SOURCE.findall(path.read_text())}
    assert len(named) > 20, "the pattern finds them"
    assert not [f"{path.relative_to(ROOT)}: {name}" for path, name in named if not (ROOT / name).exists()]


FAULTS = (ROOT / "docs/faults.md").read_text()
FAULT_ROWS = fault_totals.parse_fault_rows(FAULTS)


def list_functions(path):
    """Return the names of all functions of a Python file of the repository."""
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)}


def test_each_fault_names_tests_that_exist():
    breaches, functions = [], {}
    for row in FAULT_ROWS:
        if not row.lost or row.code not in ("0", "1", "2", "3", "4", "killed"):
            breaches.append(f"{row.fault}: lost {row.lost!r}, exit code {row.code!r}")
        names = re.findall(r"`((?:packages/[\w-]+/)?tests/[\w/]+\.py)::(\w+)`", row.tests)
        if not names:
            breaches.append(f"{row.fault}: names no test")
        for path, name in names:
            if path not in functions:
                functions[path] = list_functions(path)
            if name not in functions[path]:
                breaches.append(f"{row.fault}: {path} lacks {name}")
    assert FAULT_ROWS
    assert not breaches, "\n".join(breaches)


def test_the_totals_of_faults_are_counted_from_the_tables():
    row = "| a fault | what | nothing | {} | `t` |"
    page = "<!-- totals: rendered -->\nold\n<!-- totals: end -->\n"
    page += "| fault | what happens | what is lost | exit | shown by |\n"
    page += "\n".join([row.format("0"), row.format("1"), row.format("killed"), "| another | table |", ""])
    renewed = fault_totals.renew_fault_totals(page)
    assert "Faults made: 3. Nothing that was finished is lost in 3 of them;" in renewed
    assert "1 of them end a command" in renewed
    assert fault_totals.renew_fault_totals(FAULTS) == FAULTS, "run `knowngood render`"
