#!/usr/bin/env bash
# Compile the objects of a wheel on a machine with more cores that has neither an engine nor a network.
#
#   scripts/compile_away.sh pack IMAGE OUT    here: what compilers need of the image, the toolkits and the begun builds
#   scripts/compile_away.sh unpack IN         there, as root: all of it below /tmp/knowngood-compile
#   scripts/compile_away.sh make KEY JOBS     there, as root: the objects of the build whose folder begins with KEY
#   scripts/compile_away.sh collect KEY OUT   there: the objects and what ninja knows of them, as one archive
#
# A build has begun as soon as `knowngood compile CELL` shows ninja's first step: end it there (its container too), and
# the build's folder in the cache has build.ninja. Put back into that folder, the objects are found by the next
# `knowngood compile CELL`, which compiles what is missing, links, and compares the wheel with its committed record.
# Archives keep times to the nanosecond (pax), because ninja compares them. IMAGE is an image with the cell's torch.
set -euo pipefail
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/knowngood
PLACE=/tmp/knowngood-compile
PACKAGES=opt/venv/lib/python3.11/site-packages

pack() {
    mkdir -p "$2"
    docker run --rm --network none --user 0:0 --workdir / "$1" bash -c "
        (find bin etc lib lib64 sbin usr opt/venv -xdev -path $PACKAGES -prune -o -print
         find $PACKAGES/torch/include $PACKAGES/nvidia -type f -path '*include*') |
        tar -cf - --format=posix --no-recursion -T -" | zstd -q -f -T0 -9 -o "$2/root.tar.zst"
    tar -C "$CACHE/toolkits" --format=posix -cf - . | zstd -q -f -T0 -9 -o "$2/toolkits.tar.zst"
    local build
    for build in "$CACHE"/compile/*/; do
        tar -C "$CACHE/compile" --format=posix --exclude=.ninja_lock -cf - "$(basename "$build")" |
            zstd -q -f -T0 -9 -o "$2/build-$(basename "$build").tar.zst"
    done
}

unpack() {
    mkdir -p $PLACE/root/{build,dev,proc,toolkit,tools,tmp,home/user} $PLACE/toolkits $PLACE/builds
    zstd -dc "$1/root.tar.zst" | tar -C $PLACE/root -xf - &
    zstd -dc "$1/toolkits.tar.zst" | tar -C $PLACE/toolkits -xf - &
    local archive
    for archive in "$1"/build-*.tar.zst; do zstd -dc "$archive" | tar -C $PLACE/builds -xf -; done
    wait
}

make() {
    local build toolkit tools headers
    build=$(echo $PLACE/builds/"$1"*)
    toolkit=$(printf '%s\n' $PLACE/toolkits/*/nvidia | head -n 1) tools=$(printf '%s\n' $PLACE/toolkits/*/ninja | head -n 1)
    headers=$(cd $PLACE/root && printf '/%s:' $PACKAGES/nvidia/*/include)
    unshare --mount bash -euc "
        mount --bind '$build' $PLACE/root/build
        mount --bind '${toolkit%/*}' $PLACE/root/toolkit
        mount --bind '${tools%/*}' $PLACE/root/tools
        mount --rbind /dev $PLACE/root/dev
        mount --rbind /proc $PLACE/root/proc
        cd $PLACE/root
        exec chroot . env -i CUDA_HOME=/toolkit/nvidia/cu13 HOME=/tmp LC_ALL=C.UTF-8 CPATH='${headers%:}' \
            PATH=/toolkit/nvidia/cu13/bin:/tools/bin:/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
            SOURCE_DATE_EPOCH=315532800 PYTHONHASHSEED=0 NVCC_APPEND_FLAGS='-objtemp -frandom-seed=1' \
            bash -c 'cd /build/src/build/temp.* && exec ninja -k 0 -j $2'"
}

collect() {
    local build
    build=$(echo $PLACE/builds/"$1"*)
    (cd $PLACE/builds && find "$(basename "$build")"/src/build -name '*.o' -o -name .ninja_log -o -name .ninja_deps) |
        tar -C $PLACE/builds --format=posix -cf "$2/objects-$1.tar" -T -
    xz -T0 -3 -f "$2/objects-$1.tar"
}

"$@"
