"""Libraries read by their headers, on real ELF files; and what ld.so would make of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

import elf_samples
import pytest

from knowngood.doctor import dlopen, elf
from knowngood.doctor.library import Library, newest
from knowngood.doctor.linking import Linker
from knowngood.doctor.shelf import Files
from knowngood.fatbin import Code


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elf")
    elf_samples.put(folder)
    return folder


@pytest.fixture
def read(libraries):
    return lambda name: elf.read(libraries / name)


def test_the_kept_libraries_are_read_as_those_compiled_here(libraries):
    for name in elf_samples.NAMES:
        kept, here = elf.read(elf_samples.KEPT / name), elf.read(libraries / name)
        assert kept is not None
        assert here is not None
        for field in ("soname", "needed", "undefined", "demands", "versions", "code", "importable", "rpath", "runpath"):
            assert getattr(kept, field) == getattr(here, field), (name, field)


def test_a_module_has_its_symbols_and_its_gpu_code(read):
    flash = read("flash.so")
    assert flash.importable
    assert flash.needed == ("libc10.so",)
    assert list(flash.undefined) == [(elf_samples.ERROR + elf_samples.CXX11).encode()]
    assert flash.code == {
        Code(sass=frozenset({"90"}), ptx=frozenset()): 1,
        Code(sass=frozenset({"90"}), ptx=frozenset({"90"})): 1,
    }
    assert read("libc10-new.so").soname == "libc10.so"
    assert not read("libc10-new.so").importable


def test_versions_of_symbols(read):
    assert read("libkg-2.so").versions >= {"KG_1", "KG_2"}
    assert read("versioned.so").demands == {"libkg.so.1": ("KG_2",)}
    assert read("versioned.so").undefined == {b"two": "KG_2"}
    assert read("glibc.so").demanded("GLIBC_") == "2.99"
    assert read("glibc.so").demanded("GLIBCXX_") is None


def test_newest_is_by_number():
    assert newest("GLIBC_", ["GLIBC_2.9", "GLIBC_2.34", "GLIBC_PRIVATE", "GLIBCXX_3.4.30"]) == "2.34"
    assert newest("GLIBC_", []) is None


def test_numpy_1_is_told_by_the_module_that_is_named(read):
    assert read("numpy1.so").numpy_1
    assert not read("flash.so").numpy_1


@pytest.mark.parametrize("kept", [0, 40, 64, 1000, 3000])
def test_a_file_cut_short_is_damaged_and_no_crash(libraries, tmp_path, kept):
    path = tmp_path / "cut.so"
    path.write_bytes((libraries / "flash.so").read_bytes()[:kept])
    with pytest.raises(elf.DamagedError, match=r"cut short|damaged|empty"):
        elf.read(path)


def test_any_byte_may_be_wrong(libraries, tmp_path):
    """A library with a broken byte is read or is damaged; nothing else happens."""
    whole = (libraries / "versioned.so").read_bytes()
    path = tmp_path / "broken.so"
    for place in range(0, len(whole), 41):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with contextlib.suppress(elf.DamagedError):
            elf.read(path)


def test_what_is_no_library_is_none(tmp_path):
    script = tmp_path / "libc.so"
    script.write_text("GROUP ( /lib/libc.so.6 )")
    assert elf.read(script) is None
    (tmp_path / "zeros.so").write_bytes(bytes(9000))
    with pytest.raises(elf.DamagedError, match="zeros"):
        elf.read(tmp_path / "zeros.so")


def test_names_are_demangled():
    said = elf.demangled(elf_samples.ERROR + elf_samples.CXX11)
    assert said.startswith("c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string")
    assert elf.demangled("cudaMalloc") == "cudaMalloc"
    assert elf.demangled("_Znonsense") == "_Znonsense"


@pytest.fixture
def place(libraries, tmp_path):
    """Puts libraries into folders: `place("flash.so", "site/flash.so")`."""

    def put(name: str, where: str) -> Library:
        path = tmp_path / where
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(libraries / name, path)
        return Files().library(str(path))

    return put


def test_an_extension_of_the_other_abi_lacks_its_symbol(place, tmp_path):
    place("libc10-old.so", "lib/libc10.so")
    linked = Linker(shelf=Files(), library_path=[str(tmp_path / "lib")]).link(place("flash.so", "flash.so"))
    assert linked.undefined == (elf_samples.ERROR + elf_samples.CXX11,)
    assert not linked


def test_an_extension_of_this_torch_links(place, tmp_path):
    place("libc10-new.so", "lib/libc10.so")
    assert Linker(shelf=Files(), library_path=[str(tmp_path / "lib")]).link(place("flash.so", "flash.so"))


def test_a_library_that_is_loaded_already_is_not_looked_for(place):
    torch = place("libc10-new.so", "elsewhere/libc10.so")
    assert Linker(shelf=Files(), loaded={"libc10.so": torch}).link(place("flash.so", "flash.so"))


def test_a_library_that_is_nowhere_is_missing(place):
    flash = place("flash.so", "flash.so")
    linked = Linker(shelf=Files()).link(flash)
    assert linked.missing == (("libc10.so", flash.path),)


def test_a_symbol_is_looked_for_in_what_is_loaded_beside(place, tmp_path):
    """A library that its own needs do not satisfy, but those of the one that loads it do."""
    c10 = place("libc10-new.so", "lib/libc10.so")
    behind = place("libtorch_python.so", "lib/libtorch_python.so")
    bare = Library(path=str(tmp_path / "bare.so"), undefined={(elf_samples.ERROR + elf_samples.CXX11).encode(): ""})
    linker = Linker(shelf=Files())
    assert not linker.link(bare)
    assert linker.link(bare, [behind])
    assert linker.closure(behind).libraries[1].path == c10.path


def test_a_library_that_its_loader_has_loaded_is_not_missing(place, tmp_path):
    """As scipy's libgfortran, which finds its libquadmath by the RPATH of the module that loads both."""
    place("libkg-2.so", "lib/libkg.so.1")
    place("versioned.so", "lib/inner.so")
    inner = Library(path=str(tmp_path / "lib/inner.so"), needed=("libkg.so.1",))
    outer = Library(path=str(tmp_path / "it.so"), needed=("libkg.so.1", "inner.so"), rpath=("$ORIGIN/lib",))
    linker = Linker(shelf=Files())
    assert linker.link(inner).missing
    assert linker.link(inner, [outer])


@pytest.mark.parametrize(("name", "first"), [("rpath.so", "lib"), ("runpath.so", "other")])
def test_rpath_comes_before_ld_library_path_and_runpath_after(place, tmp_path, name, first):
    place("libkg-2.so", "lib/libkg.so.1")
    place("libkg-1.so", "other/libkg.so.1")
    linker = Linker(shelf=Files(), library_path=[str(tmp_path / "other")])
    library = place(name, "site/it.so")
    assert linker.closure(library).libraries[1].path == str(tmp_path / first / "libkg.so.1")


def test_a_version_that_the_found_library_lacks(place, tmp_path):
    one = place("libkg-1.so", "lib/libkg.so.1")
    linked = Linker(shelf=Files(), library_path=[str(tmp_path / "lib")]).link(place("versioned.so", "versioned.so"))
    assert linked.versions == (("KG_2", one.path),)


def test_the_linker_agrees_with_ld_so(place, tmp_path):
    """What is said to load does load, and what is said not to load does not, with the very symbol named."""
    place("libc10-old.so", "old/libc10.so")
    place("libc10-new.so", "new/libc10.so")
    flash = place("flash.so", "flash.so")
    for folder in ("old", "new"):
        linked = Linker(shelf=Files(), library_path=[str(tmp_path / folder)]).link(flash)
        program = f"import ctypes; ctypes.CDLL({flash.path!r}, mode=2)"  # RTLD_NOW, as Python imports
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path / folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) == bool(linked), done.stderr
        assert all(f"undefined symbol: {name}" in done.stderr for name in linked.undefined)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize(
    ("source", "options", "later"),
    [
        ("void nowhere(void); void run(void) { nowhere(); }", ["-z,lazy"], ("nowhere",)),
        ("void nowhere(void); void run(void) { nowhere(); }", ["-z,now"], ()),
        ("void nowhere(void); void *run(void) { nowhere(); return nowhere; }", ["-z,lazy"], ()),
        ("extern int nowhere; int run(void) { return nowhere; }", ["-z,lazy"], ()),
    ],
)
def test_a_function_that_is_only_called_may_be_missed_later(tmp_path, source, options, later):
    """As ld.so has it, with RTLD_LAZY."""
    path = tmp_path / "it.so"
    (tmp_path / "it.c").write_text(source)
    linking = [f"-Wl,{option}" for option in options]
    subprocess.run(["gcc", "-shared", "-fPIC", *linking, "-o", path, tmp_path / "it.c"], check=True)
    library = Files().library(str(path))
    assert library is not None
    assert "nowhere" in Linker(shelf=Files()).link(library).undefined
    linked = Linker(shelf=Files()).link(library, lazily=True)
    assert linked.later == later
    program = f"import ctypes, os; ctypes.CDLL({str(path)!r}, mode=os.RTLD_LAZY)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode == 0) == ("nowhere" not in linked.undefined)


def test_what_a_package_asks_of_the_linker_is_read_from_its_source(tmp_path):
    (tmp_path / "common").mkdir()
    (tmp_path / "__init__.py").write_text(
        "import ctypes\n# RTLD_LAZY would be nice\nctypes.CDLL('a.so', mode=ctypes.RTLD_GLOBAL)\n"
    )
    assert dlopen.of(tmp_path) == dlopen.Loads(everywhere=True)
    text = "import ctypes, os\nctypes.CDLL('core.so', mode=ctypes.RTLD_GLOBAL | os.RTLD_LAZY)\n"
    (tmp_path / "common" / "__init__.py").write_text(text)
    assert dlopen.of(tmp_path) == dlopen.Loads(everywhere=True, lazily=True)
    (tmp_path / "common" / "__init__.py").write_text("CDLL(")
    assert dlopen.of(tmp_path / "common") == dlopen.of(tmp_path / "absent") == dlopen.Loads()


def test_damaged_files_are_noted_by_the_shelf(tmp_path):
    path = tmp_path / "cut.so"
    path.write_bytes(b"\x7fELF")
    shelf = Files()
    assert shelf.library(str(path)) is None
    assert shelf.library(str(tmp_path / "absent.so")) is None
    assert list(shelf.damaged) == [str(path)]
    assert shelf.cached("libnowhere.so.9") is None
