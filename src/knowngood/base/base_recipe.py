"""What shapes a base besides its packages. Pure data: a change here changes the digest of every base."""

from __future__ import annotations

RECIPE = 2  # raised when the way from packages to a layer changes
PACKAGES = ("python3", "gcc", "g++", "libc6-dev", "libpython3.11-dev", "ca-certificates")
# Every base has them. The second replaces usrmerge, a converter of old systems that would bring all of Perl.
ALWAYS = ("?essential", "usr-is-merged")
TOOLS = ("mmdebstrap", "zstd")
# The suite of the tools where it is not the base's: bullseye's mmdebstrap wants an apt in the system that it makes.
TOOLS_SUITE = {"bullseye": "bookworm"}
COMPRESS = ("-10", "-T0", "--no-progress", "--quiet", "--stdout", "-")
CONFIG = {
    "Cmd": ["/bin/bash"],
    "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
}
DROP = (
    # documentation and translations; the licences stay
    "usr/share/doc/*",
    "!usr/share/doc/*/copyright",
    "usr/share/man/*",
    "usr/share/info/*",
    "usr/share/locale/*",
    "usr/share/lintian/*",
    "usr/share/bug/*",
    "usr/share/gcc/*",
    "usr/share/gdb/*",
    # traces of this bootstrap or of the host it ran on
    "dev/*",
    "proc/*",
    "sys/*",
    "run/*",
    "tmp/*",
    "etc/hostname",
    "etc/resolv.conf",
    "etc/machine-id",
    "etc/apt*",
    "etc/.pwd.lock",
    "var/lib/apt*",
    "var/lib/dpkg/lock*",
    "var/lib/dpkg/triggers/Lock",
    "var/lib/dpkg/*-old",
    "var/cache/*",
    "!var/cache/debconf",
    "!var/cache/ldconfig",
    "var/log/*",
    "var/tmp/*",
    # not needed to compile a launcher or an extension: a static Python, sanitizers, a debugger's tool
    "usr/lib/*/libpython3.*.a",
    "usr/lib/python3.*/config-*/*.a",
    "usr/lib/gcc/*/lib[alut]*san*",
    "usr/lib/*/lib[alut]*san.so*",
    "usr/bin/*lto-dump*",
)

# Since Debian 12 every system has a merged /usr. mmdebstrap merges it for suites that it knows, not for an archive.
MERGE_USR = 'for name in bin sbin lib lib64; do mkdir -p "$1/usr/$name"; ln -s "usr/$name" "$1/$name"; done'

# Python's bytecode is compiled again, in one order, with one hash seed and without a time stamp: the package's own
# compilation follows the order of files on the disk, which marshal's reference flags show.
COMPILE = (
    """find "$1/usr" -name __pycache__ -type d -prune -exec rm -rf {} + && """
    """env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin PYTHONHASHSEED=0 chroot "$1" sh -c """
    """'python3 -m compileall -q -j 1 --invalidation-mode unchecked-hash /usr/lib/python3 /usr/lib/python3.*'"""
)
