from pathlib import Path

import pytest

from knowngood.base import debian_host, private_apt
from knowngood.base.debian_host import DebianHost, PackageArchive
from knowngood.core import errors

RELEASES = """\
'http://mirror.test/debian/dists/bookworm/InRelease' mirror.test_debian_dists_bookworm_InRelease 0 \n\
'http://mirror.test/debian/dists/bookworm-updates/InRelease' mirror.test_debian_dists_bookworm-updates_InRelease 0 \n\
'http://mirror.test/security/dists/bookworm-security/InRelease' x 0 \n\
'https://third.test/node//dists/nodistro/InRelease' third 0 \n\
'http://mirror.test/debian/dists/bookworm/main/binary-amd64/Packages.xz' x 0 \n\
"""
DEBIAN = DebianHost(distribution="debian", codename="bookworm")


def test_os_release_of_debian():
    text = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_CODENAME=bookworm\nID=debian\n'
    assert debian_host.parse_os_release(text) == DEBIAN


def test_os_release_of_a_derivative_names_its_ubuntu():
    text = "ID=linuxmint\nVERSION_CODENAME=wilma\nUBUNTU_CODENAME=noble\n"
    assert debian_host.parse_os_release(text) == DebianHost(distribution="ubuntu", codename="noble")


@pytest.mark.parametrize("text", ["ID=fedora\nVERSION_ID=41\n", "ID=debian\n", "", "no equals sign\n"])
def test_os_release_of_anything_else(text):
    assert debian_host.parse_os_release(text) is None


def test_release_uris_are_pairs_of_mirror_and_suite():
    assert debian_host.parse_release_uris(RELEASES) == (
        ("http://mirror.test/debian", "bookworm"),
        ("http://mirror.test/debian", "bookworm-updates"),
        ("http://mirror.test/security", "bookworm-security"),
        ("https://third.test/node", "nodistro"),
    )


def test_archives_of_another_suite_use_the_mirrors_of_the_host():
    found = debian_host.archives_of_suite(DEBIAN, "trixie", debian_host.parse_release_uris(RELEASES))
    assert [(archive.mirror, archive.suite) for archive in found] == [
        ("http://mirror.test/debian", "trixie"),
        ("http://mirror.test/debian", "trixie-updates"),
        ("http://mirror.test/security", "trixie-security"),
    ]


def test_archives_of_third_parties_are_not_used():
    assert debian_host.archives_of_suite(DEBIAN, "bookworm", [("http://third.test", "nodistro")]) == ()


def test_archive_is_a_line_of_a_sources_list():
    archive = PackageArchive(mirror="http://m.test/debian", suite="s", components=("main",), keyring=Path("/k.gpg"))
    assert str(archive) == "deb [signed-by=/k.gpg] http://m.test/debian s main"


def test_default_mirror_is_read_out_of_mmdebstrap():
    script = "    my $mirror    = 'http://m.test/debian';\n    my $secmirror = 'http://s.test/debian-security';\n"
    assert debian_host.parse_default_mirror(script) == "http://m.test/debian"
    assert debian_host.parse_default_mirror("print 1;") is None


def test_package_uris_are_sorted_and_epochs_decoded():
    sha = "0" * 64
    text = (
        "Reading package lists...\n"
        f"'http://m.test/pool/z/zlib1g_1.2_amd64.deb' zlib1g_1%3a1.2_amd64.deb 86684 SHA256:{sha}\n"
        f"'http://m.test/pool/g/g%2b%2b_12_amd64.deb' g++_4%3a12_amd64.deb 1356 SHA256:{sha} \n"
        "'http://m.test/pool/x/x_1_all.deb' x_1_all.deb 1 MD5Sum:00\n"
    )
    found = private_apt.parse_package_uris(text)
    assert [(remote.name, remote.version, remote.arch) for remote in found] == [
        ("g++", "4:12", "amd64"),
        ("zlib1g", "1:1.2", "amd64"),
    ]


def test_the_private_configuration_keeps_only_the_fetch_settings():
    dump = (
        'Acquire::http::Proxy "http://proxy.test:3128";\n'
        'Acquire::Languages:: "de";\n'
        'APT::Update::Post-Invoke:: "rm -rf /";\n'
        'Dir::Etc::sourceparts "sources.list.d";\n'
    )
    text = private_apt.apt_configuration(Path("/private"), dump, Path("/scratch"))
    assert 'Acquire::http::Proxy "http://proxy.test:3128";' in text
    assert '"de"' not in text
    assert "Post-Invoke" not in text
    assert 'Dir::State "/private/state";' in text
    assert 'Dir::Etc::sourceparts "/dev/null";' in text


def test_a_failed_command_gives_its_error_lines():
    with pytest.raises(errors.KnowngoodError, match="failed with status 3: E: no such package") as caught:
        private_apt.run_command(["sh", "-c", "echo W: noise >&2; echo E: no such package >&2; exit 3"])
    assert "\n" not in str(caught.value)


def test_a_full_disk_under_another_program_is_said():
    with pytest.raises(errors.MissingError, match=r"the disk is full: `cp .*No space left on device"):
        private_apt.run_command(["cp", "/etc/debian_version", "/dev/full"])


def test_logins_of_mirrors_are_moved_out_of_the_list_of_sources():
    sources = [
        "deb http://bob:p%40ss@mirror.test:81/debian bookworm main",
        "deb http://other.test/debian bookworm main",
    ]
    assert private_apt.split_mirror_logins(sources) == (
        ["deb http://mirror.test:81/debian bookworm main", sources[1]],
        ["machine http://mirror.test:81 login bob password p@ss"],
    )
