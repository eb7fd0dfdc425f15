"""Libraries read by their headers, on real ELF files, and linked as ld.so links them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

import elf_samples
from knowngood.index.gpu_code import GpuCode
from knowngood_diagnose.doctor import elf_reader, probe
from knowngood_diagnose.doctor.elf_reader import DynamicLinker, MachineLibraries, SharedLibrary, newest_version


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elf")
    elf_samples.put(folder)
    return folder


@pytest.fixture
def read(libraries):
    return lambda name: elf_reader.read_library(libraries / name)


def test_the_kept_libraries_are_read_as_those_compiled_here(libraries):
    for name in elf_samples.NAMES:
        kept, here = elf_reader.read_library(elf_samples.KEPT / name), elf_reader.read_library(libraries / name)
        assert kept is not None
        assert here is not None
        for field in (
            "soname",
            "needed",
            "undefined",
            "demanded_versions",
            "provided_versions",
            "code",
            "importable",
            "rpath",
            "runpath",
        ):
            assert getattr(kept, field) == getattr(here, field), (name, field)


def test_symbols_and_gpu_code_of_a_module_are_read(read):
    flash = read("flash.so")
    assert flash.importable
    assert flash.needed == ("libc10.so",)
    assert list(flash.undefined) == [(elf_samples.ERROR + elf_samples.CXX11).encode()]
    assert flash.code == {
        GpuCode(sass=frozenset({"90"}), ptx=frozenset()): 1,
        GpuCode(sass=frozenset({"90"}), ptx=frozenset({"90"})): 1,
    }
    assert read("libc10-new.so").soname == "libc10.so"
    assert not read("libc10-new.so").importable


def test_versions_of_symbols(read):
    assert read("libkg-2.so").provided_versions >= {"KG_1", "KG_2"}
    assert read("versioned.so").demanded_versions == {"libkg.so.1": ("KG_2",)}
    assert read("versioned.so").undefined == {b"two": "KG_2"}
    assert read("glibc.so").newest_demanded("GLIBC_") == "2.99"
    assert read("glibc.so").newest_demanded("GLIBCXX_") is None


def test_newest_is_by_number():
    assert newest_version("GLIBC_", ["GLIBC_2.9", "GLIBC_2.34", "GLIBC_PRIVATE", "GLIBCXX_3.4.30"]) == "2.34"
    assert newest_version("GLIBC_", []) is None


def test_numpy_1_is_recognised_by_the_module_name_in_the_library(read):
    assert read("numpy1.so").numpy_1
    assert not read("flash.so").numpy_1


@pytest.mark.parametrize("kept", [0, 40, 64, 1000, 3000])
def test_a_file_that_is_cut_short_is_damaged(libraries, tmp_path, kept):
    path = tmp_path / "cut.so"
    path.write_bytes((libraries / "flash.so").read_bytes()[:kept])
    with pytest.raises(elf_reader.DamagedLibraryError, match=r"cut short|damaged|empty"):
        elf_reader.read_library(path)


def test_any_byte_may_be_wrong(libraries, tmp_path):
    """A library with a wrong byte is either read or reported as damaged."""
    whole = (libraries / "versioned.so").read_bytes()
    path = tmp_path / "broken.so"
    for place in range(0, len(whole), 41):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with contextlib.suppress(elf_reader.DamagedLibraryError):
            elf_reader.read_library(path)


def test_a_linker_script_is_none_and_zeros_are_damage(tmp_path):
    script = tmp_path / "libc.so"
    script.write_text("GROUP ( /lib/libc.so.6 )")
    assert elf_reader.read_library(script) is None
    (tmp_path / "zeros.so").write_bytes(bytes(9000))
    with pytest.raises(elf_reader.DamagedLibraryError, match="zeros"):
        elf_reader.read_library(tmp_path / "zeros.so")


def test_symbols_are_demangled():
    text = elf_reader.demangle_symbol(elf_samples.ERROR + elf_samples.CXX11)
    assert text.startswith("c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string")
    assert elf_reader.demangle_symbol("cudaMalloc") == "cudaMalloc"
    assert elf_reader.demangle_symbol("_Znonsense") == "_Znonsense"


@pytest.fixture
def place(libraries, tmp_path):
    """Return a function that copies a sample into a folder and reads it: `place("flash.so", "site/flash.so")`."""

    def put(name: str, where: str) -> SharedLibrary:
        path = tmp_path / where
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(libraries / name, path)
        return MachineLibraries().library(str(path))

    return put


def test_an_extension_of_the_other_abi_lacks_its_symbol(place, tmp_path):
    place("libc10-old.so", "lib/libc10.so")
    linked = DynamicLinker(source=MachineLibraries(), library_path=[str(tmp_path / "lib")]).link(
        place("flash.so", "flash.so")
    )
    assert linked.undefined == (elf_samples.ERROR + elf_samples.CXX11,)
    assert not linked


def test_an_extension_of_this_torch_links(place, tmp_path):
    place("libc10-new.so", "lib/libc10.so")
    assert DynamicLinker(source=MachineLibraries(), library_path=[str(tmp_path / "lib")]).link(
        place("flash.so", "flash.so")
    )


def test_a_library_that_is_loaded_is_not_searched_for(place):
    torch = place("libc10-new.so", "elsewhere/libc10.so")
    assert DynamicLinker(source=MachineLibraries(), loaded={"libc10.so": torch}).link(place("flash.so", "flash.so"))


def test_a_library_that_is_not_found_is_missing(place):
    flash = place("flash.so", "flash.so")
    linked = DynamicLinker(source=MachineLibraries()).link(flash)
    assert linked.missing == (("libc10.so", flash.path),)


def test_symbols_are_searched_in_libraries_that_are_loaded_before(place, tmp_path):
    """What a library needs may be missing in its own libraries and be in those of the one that loads it."""
    c10 = place("libc10-new.so", "lib/libc10.so")
    behind = place("libtorch_python.so", "lib/libtorch_python.so")
    bare = SharedLibrary(
        path=str(tmp_path / "bare.so"), undefined={(elf_samples.ERROR + elf_samples.CXX11).encode(): ""}
    )
    linker = DynamicLinker(source=MachineLibraries())
    assert not linker.link(bare)
    assert linker.link(bare, [behind])
    assert linker.closure(behind).libraries[1].path == c10.path


def test_a_library_that_its_loader_has_loaded_is_not_missing(place, tmp_path):
    """As scipy's libgfortran, which finds its libquadmath by the RPATH of the module that loads both."""
    place("libkg-2.so", "lib/libkg.so.1")
    place("versioned.so", "lib/inner.so")
    inner = SharedLibrary(path=str(tmp_path / "lib/inner.so"), needed=("libkg.so.1",))
    outer = SharedLibrary(path=str(tmp_path / "it.so"), needed=("libkg.so.1", "inner.so"), rpath=("$ORIGIN/lib",))
    linker = DynamicLinker(source=MachineLibraries())
    assert linker.link(inner).missing
    assert linker.link(inner, [outer])


@pytest.mark.parametrize(("name", "first"), [("rpath.so", "lib"), ("runpath.so", "other")])
def test_rpath_comes_before_ld_library_path_and_runpath_after(place, tmp_path, name, first):
    place("libkg-2.so", "lib/libkg.so.1")
    place("libkg-1.so", "other/libkg.so.1")
    linker = DynamicLinker(source=MachineLibraries(), library_path=[str(tmp_path / "other")])
    library = place(name, "site/it.so")
    assert linker.closure(library).libraries[1].path == str(tmp_path / first / "libkg.so.1")


def test_rpath_does_not_count_in_a_library_with_runpath(place, tmp_path):
    place("libkg-2.so", "old/libkg.so.1")
    place("libkg-1.so", "new/libkg.so.1")
    folders = {"rpath": (str(tmp_path / "old"),), "runpath": (str(tmp_path / "new"),)}
    both = SharedLibrary(path=str(tmp_path / "it.so"), needed=("libkg.so.1",), **folders)
    linker = DynamicLinker(source=MachineLibraries())
    assert linker.closure(both).libraries[1].path == str(tmp_path / "new/libkg.so.1")
    needs = SharedLibrary(path=str(tmp_path / "needs.so"), needed=("libkg.so.1",))
    assert linker.find_library("libkg.so.1", [both, needs]) is None
    elsewhere = replace(both, runpath=(str(tmp_path / "none"),))
    assert linker.find_library("libkg.so.1", [elsewhere]) is None
    loader = replace(both, runpath=())
    with_runpath = replace(needs, runpath=(str(tmp_path / "none"),))
    assert linker.find_library("libkg.so.1", [loader, with_runpath]) is None
    assert linker.find_library("libkg.so.1", [loader, needs]).path == str(tmp_path / "old/libkg.so.1")


def test_system_folders_are_searched_before_those_of_wheels(place, tmp_path, monkeypatch):
    system = place("libkg-2.so", "usr/lib/libkg.so.1")
    wheel = place("libkg-1.so", "wheel/lib/libkg.so.1")
    library = SharedLibrary(path=str(tmp_path / "it.so"), needed=("libkg.so.1",))
    monkeypatch.setattr("knowngood_diagnose.doctor.elf_reader._SYSTEM_FOLDERS", [str(tmp_path / "usr/lib")])
    folders = {"wheel_folders": [str(tmp_path / "wheel/lib")]}
    assert DynamicLinker(source=MachineLibraries(), **folders).closure(library).libraries[1].path == system.path
    monkeypatch.setattr("knowngood_diagnose.doctor.elf_reader._SYSTEM_FOLDERS", [])
    assert DynamicLinker(source=MachineLibraries(), **folders).closure(library).libraries[1].path == wheel.path


def test_a_library_without_symbol_versions_lacks_none(place, tmp_path):
    """ld.so prints a warning and goes on."""
    plain = replace(place("libkg-1.so", "lib/libkg.so.1"), provided_versions=frozenset())
    library = SharedLibrary(
        path=str(tmp_path / "it.so"), needed=("libkg.so.1",), demanded_versions={"libkg.so.1": ("KG_2",)}
    )
    assert DynamicLinker(source=MachineLibraries(), loaded={"libkg.so.1": plain}).link(library).versions == ()


def test_a_version_that_the_library_lacks_is_reported(place, tmp_path):
    one = place("libkg-1.so", "lib/libkg.so.1")
    linked = DynamicLinker(source=MachineLibraries(), library_path=[str(tmp_path / "lib")]).link(
        place("versioned.so", "versioned.so")
    )
    assert linked.versions == (("KG_2", one.path),)


def test_the_linker_agrees_with_ld_so(place, tmp_path):
    """A library links exactly when ld.so loads it, and ld.so names the symbol that is reported."""
    place("libc10-old.so", "old/libc10.so")
    place("libc10-new.so", "new/libc10.so")
    flash = place("flash.so", "flash.so")
    for folder in ("old", "new"):
        linked = DynamicLinker(source=MachineLibraries(), library_path=[str(tmp_path / folder)]).link(flash)
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
def test_a_function_that_is_only_called_is_missed_when_it_is_called(tmp_path, source, options, later):
    """ld.so with RTLD_LAZY gives the same answer."""
    path = tmp_path / "it.so"
    (tmp_path / "it.c").write_text(source)
    linking = [f"-Wl,{option}" for option in options]
    subprocess.run(["gcc", "-shared", "-fPIC", *linking, "-o", path, tmp_path / "it.c"], check=True)
    library = MachineLibraries().library(str(path))
    assert library is not None
    assert "nowhere" in DynamicLinker(source=MachineLibraries()).link(library).undefined
    linked = DynamicLinker(source=MachineLibraries()).link(library, lazily=True)
    assert linked.later == later
    program = f"import ctypes, os; ctypes.CDLL({str(path)!r}, mode=os.RTLD_LAZY)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode == 0) == ("nowhere" not in linked.undefined)


def test_the_dlopen_flags_of_a_package_are_read_from_its_source(tmp_path):
    (tmp_path / "common").mkdir()
    (tmp_path / "__init__.py").write_text(
        "import ctypes\n# RTLD_LAZY would be nice\nctypes.CDLL('a.so', mode=ctypes.RTLD_GLOBAL)\n"
    )
    assert probe.read_dlopen_flags(tmp_path) == probe.DlopenFlags(everywhere=True)
    text = "import ctypes, os\nctypes.CDLL('core.so', mode=ctypes.RTLD_GLOBAL | os.RTLD_LAZY)\n"
    (tmp_path / "common" / "__init__.py").write_text(text)
    assert probe.read_dlopen_flags(tmp_path) == probe.DlopenFlags(everywhere=True, lazily=True)
    (tmp_path / "common" / "__init__.py").write_text("CDLL(")
    assert (
        probe.read_dlopen_flags(tmp_path / "common")
        == probe.read_dlopen_flags(tmp_path / "absent")
        == probe.DlopenFlags()
    )


def test_damaged_files_are_recorded(tmp_path):
    path = tmp_path / "cut.so"
    path.write_bytes(b"\x7fELF")
    source = MachineLibraries()
    assert source.library(str(path)) is None
    assert source.library(str(tmp_path / "absent.so")) is None
    assert list(source.damaged) == [str(path)]
    assert source.cached("libnowhere.so.9") is None
