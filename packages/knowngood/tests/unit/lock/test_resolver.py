from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest
from packaging.tags import Tag

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.index import index_settings
from knowngood.lock import resolver

REQUEST = resolver.ResolverRequest(
    requirements=("torch==2.11.0", "pytest"), excludes=(), python="3.11", glibc="2.36", locked_at="2026-11-20"
)
SHA = "a" * 64


def wheel(file: str, sha256: str | None = SHA) -> dict[str, object]:
    return {"url": f"https://files.example/{file}", "hashes": {"sha256": sha256} if sha256 else {"md5": "x"}}


def chosen(*files: str, request: resolver.ResolverRequest = REQUEST) -> str:
    lock = {"packages": [{"name": "a", "version": "1.0", "wheels": [wheel(file) for file in files]}]}
    (item,) = resolver.parse_pylock(lock, request)
    return item.file


def test_an_installer_would_prefer():
    plain, old, new = (
        "a-1.0-py3-none-any.whl",
        "a-1.0-cp311-cp311-manylinux_2_17_x86_64.whl",
        "a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    )
    assert chosen(plain, old, new) == new
    assert chosen(new, old, plain) == new
    assert chosen(plain, old) == old
    assert chosen("a-1.0-cp310-abi3-manylinux_2_28_x86_64.whl", plain) == "a-1.0-cp310-abi3-manylinux_2_28_x86_64.whl"
    assert chosen(new.replace("_28_", "_39_"), plain) == plain
    assert chosen(new.replace("x86_64", "aarch64"), new.replace("311", "312"), plain) == plain


def test_a_file_name_is_unquoted():
    item = resolver.PinnedFile(
        name="a", version="1", url="https://files.example/x/a-1%2Bcu13-py3-none-any.whl?q=1", sha256=SHA
    )
    assert item.file == "a-1+cu13-py3-none-any.whl"


@pytest.mark.parametrize(
    "wheels",
    [
        [],
        [wheel("a-1.0-cp312-cp312-manylinux_2_28_x86_64.whl")],
        [wheel("a-1.0-cp311-cp311-manylinux_2_39_x86_64.whl")],
        [wheel("a-1.0-cp311-cp311-win_amd64.whl")],
        [wheel("a-1.0-py3-none-any.whl", sha256=None)],
        [wheel("not a wheel.whl")],
    ],
)
def test_a_distribution_without_a_wheel_that_fits_is_named(wheels):
    with pytest.raises(
        KnowngoodError, match=r"^a 1.0 has no wheel with a sha256 for Python 3.11 and glibc 2.36 on x86-64$"
    ):
        resolver.parse_pylock({"packages": [{"name": "a", "version": "1.0", "wheels": wheels}]}, REQUEST)


def test_a_source_archive_is_taken_where_it_is_let_in_and_there_is_no_wheel():
    archive = {"url": "https://files.example/a-1.0.tar.gz", "hashes": {"sha256": SHA}}
    lock = {"packages": [{"name": "a", "version": "1.0", "sdist": archive}]}
    (item,) = resolver.parse_pylock(lock, dataclasses.replace(REQUEST, sources=("a",)))
    assert (item.file, item.sha256) == ("a-1.0.tar.gz", SHA)
    with pytest.raises(KnowngoodError, match=r"^a 1\.0 has no wheel"):
        resolver.parse_pylock(lock, dataclasses.replace(REQUEST, sources=("b",)))


def test_what_came_later_than_the_first_locks_counts_where_it_is_used():
    assert "sources" not in REQUEST.document()
    assert dataclasses.replace(REQUEST, sources=("a",)).document()["sources"] == ("a",)


def test_a_wheel_of_the_wheelhouse_has_a_path(tmp_path):
    lock = {
        "packages": [
            {
                "name": "a",
                "version": "1",
                "wheels": [{"path": str(tmp_path / "a-1-py3-none-any.whl"), "hashes": {"sha256": SHA}}],
            }
        ]
    }
    assert resolver.parse_pylock(lock, REQUEST)[0].url == (tmp_path / "a-1-py3-none-any.whl").as_uri()


@pytest.mark.parametrize(("glibc", "has", "lacks"), [("2.36", "2_36", "2_37"), ("2.17", "2_17", "2_18")])
def test_the_tags_of_a_base(glibc, has, lacks):
    tags = resolver.supported_tags("3.11", glibc)
    assert Tag("cp311", "cp311", f"manylinux_{has}_x86_64") in tags
    assert Tag("cp311", "cp311", f"manylinux_{lacks}_x86_64") not in tags
    assert Tag("cp311", "cp311", "manylinux2014_x86_64") in tags
    assert tags.index(Tag("cp311", "cp311", "manylinux_2_17_x86_64")) < tags.index(Tag("py3", "none", "any"))


def test_the_command_takes_nothing_of_the_hosts_configuration_but_where_the_index_is(monkeypatch):
    monkeypatch.setattr(index_settings, "read_index_settings", lambda: index_settings.IndexSettings(env={}, files={}))
    argv = resolver.resolver_command(REQUEST, Path("/tmp/f"), None)
    assert argv[1:3] == ["pip", "compile"]
    assert "--no-config" in argv
    assert argv[argv.index("--python-platform") + 1] == "x86_64-manylinux_2_36"
    # A day alone would end by the clock of this machine.
    assert argv[argv.index("--exclude-newer") + 1] == "2026-11-20T23:59:59Z"
    assert argv[argv.index("--only-binary") + 1] == ":all:"
    assert not {"--excludes", "--find-links", "--no-binary", "--overrides"} & set(argv)


def test_the_command_with_everything(monkeypatch):
    monkeypatch.setattr(
        index_settings,
        "read_index_settings",
        lambda: index_settings.IndexSettings(env={}, files={"uv-config": Path("/etc/uv/uv.toml")}),
    )
    request = resolver.ResolverRequest(
        requirements=("a",),
        excludes=("b",),
        python="3.12",
        glibc="2.28",
        locked_at="2026-11-20",
        sources=("c",),
        overrides=("d==1",),
    )
    argv = resolver.resolver_command(request, Path("/tmp/f"), Path("/wheels"))
    assert argv[argv.index("--config-file") + 1] == "/etc/uv/uv.toml"
    assert argv[argv.index("--find-links") + 1] == "/wheels"
    assert argv[argv.index("--excludes") + 1] == "/tmp/f/excludes.txt"
    assert argv[argv.index("--overrides") + 1] == "/tmp/f/overrides.txt"
    assert argv[argv.index("--no-binary") + 1] == "c"
    assert "--no-config" not in argv


NO_SOLUTION = """error: No solution found when resolving dependencies
  cause: Because only torch<=2.11.0 is available and you require
         torch==2.99.0, we can conclude that your requirements are unsatisfiable.
"""
OFFLINE = """error: Request failed after 3 retries in 7.1s
  cause: Failed to fetch: https://me:s3cret@index.example/simple/x/
  cause: error sending request for url (https://me:s3cret@index.example/simple/x/)
  cause: dns error
"""


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        (
            NO_SOLUTION,
            1,
            "nothing satisfies torch==2.11.0, pytest: No solution found when resolving dependencies; Because only ",
        ),
        (
            NO_SOLUTION.replace("error: ", "  \u00d7 ").replace("cause:", "╰─▶"),
            1,
            "nothing satisfies torch==2.11.0, pytest: No sol",
        ),
        (
            OFFLINE,
            4,
            "the index did not answer the resolver: Request failed after 3 retries in 7.1s; Failed to fetch: ht",
        ),
        (OFFLINE.replace("dns error", "invalid peer certificate: UnknownIssuer"), 4, "the index did not answer"),
        (
            NO_SOLUTION
            + "\nhint: An index URL (https://index.example/simple) could not be queried due to a lack of valid "
            "authentication credentials (401 Unauthorized).",
            4,
            "the index refuses the resolver",
        ),
        ("error: failed to write to file: No space left on device (os error 28)", 4, "the disk is full: "),
        ("error: invalid value 'x' for '--python-version'", 1, "the resolver failed: invalid value 'x'"),
        ("", 1, "the resolver failed"),
    ],
)
def test_what_the_resolver_said_becomes_the_right_sentence(said, code, message):
    error = resolver.resolver_error(said, REQUEST.requirements)
    assert error.exit_code == code
    assert str(error).startswith(message)
    assert "s3cret" not in str(error)
    assert "\n" not in str(error)


def test_no_solution_has_a_class_of_its_own():
    assert isinstance(resolver.resolver_error(NO_SOLUTION, ["a"]), resolver.NoSolutionError)
    assert isinstance(resolver.resolver_error(OFFLINE, ["a"]), MissingError)


def test_the_resolver_runs_with_the_hosts_index_and_without_its_other_wishes(monkeypatch, tmp_path):
    seen = {}

    def run(argv, *, env, **_):
        folder = Path(argv[-1]).parent
        seen.update(env=env, requirements=(folder / "in.txt").read_text(), folder=folder)
        (folder / "pylock.toml").write_text(
            '[[packages]]\nname = "a"\nversion = "1"\n[[packages.wheels]]\n'
            f'url = "https://files.example/a-1-py3-none-any.whl"\nhashes = {{sha256 = "{SHA}"}}\n'
        )
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    settings = index_settings.IndexSettings(
        env={"UV_DEFAULT_INDEX": "https://index.example"}, files={"ca": tmp_path / "ca"}
    )
    monkeypatch.setattr(index_settings, "read_index_settings", lambda: settings)
    monkeypatch.setenv("UV_RESOLUTION", "lowest")
    monkeypatch.setenv("UV_CACHE_DIR", "/cache")
    monkeypatch.setenv("UV_INDEX", "file:///srv")
    (item,) = resolver.resolve_distributions(REQUEST)
    assert (item.name, item.version, item.sha256) == ("a", "1", SHA)
    assert seen["requirements"] == "torch==2.11.0\npytest\n"
    assert {key: value for key, value in seen["env"].items() if key.startswith(("UV_", "SSL_CERT_FILE"))} == {
        "UV_CACHE_DIR": "/cache",
        "UV_DEFAULT_INDEX": "https://index.example",
        "SSL_CERT_FILE": str(tmp_path / "ca"),
    }
    assert not seen["folder"].exists()


def test_a_lock_for_aarch64_takes_its_wheels_and_asks_for_no_other():
    arm = dataclasses.replace(REQUEST, host="aarch64")
    mine, other = "a-1.0-cp311-cp311-manylinux2014_aarch64.whl", "a-1.0-cp311-cp311-manylinux2014_x86_64.whl"
    assert chosen(other, mine, request=arm) == mine
    assert chosen(other, mine) == other
    argv = resolver.resolver_command(arm, Path("/f"), None)
    assert argv[argv.index("--python-platform") + 1] == "aarch64-manylinux_2_36"
    assert "manylinux1_aarch64" not in {
        tag.platform for tag in resolver.supported_tags("3.11", "2.36", arm.architecture)
    }


def test_the_host_of_x86_64_is_no_part_of_what_decides_a_lock():
    assert "host" not in REQUEST.document()
    assert dataclasses.replace(REQUEST, host="aarch64").document()["host"] == "aarch64"
