#!/usr/bin/env bash
# Compile the objects of a wheel on a machine with more cores that has neither an engine nor a network.
#
#   packages/knowngood/scripts/compile_away.sh pack IMAGE OUT KEY...  here: what compilers need of the image, and these begun builds
#   packages/knowngood/scripts/compile_away.sh unpack IN         there, as root: all of it below KNOWNGOOD_AWAY (/tmp/knowngood-compile)
#   packages/knowngood/scripts/compile_away.sh make KEY JOBS [N] there, as root: all or the last N objects of the build whose folder begins with KEY
#   packages/knowngood/scripts/compile_away.sh collect KEY OUT   there: the objects and what ninja knows of them, as one archive
#
# A build has begun as soon as `knowngood compile CELL` shows ninja's first step: end it there (its container too), and
# the build's folder in the cache has build.ninja. Put back into that folder, the objects are found by the next
# `knowngood compile CELL`, which compiles what is missing, links, and compares the wheel with its committed record.
# Archives keep times to the nanosecond (pax), because ninja compares them. IMAGE is an image with the cell's torch.
set -euo pipefail
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/knowngood
PLACE=${KNOWNGOOD_AWAY:-/tmp/knowngood-compile}  # one for each image

cuda_home() {  # CUDA_HOME below /toolkit, as the build's ninja file has it
    sed -n 's,^nvcc = /toolkit/\(.*\)/bin/nvcc$,\1,p' "$1"/src/build/temp.*/build.ninja
}

pack() {
    mkdir -p "$2"
    docker run --rm --network none --user 0:0 --workdir / "$1" bash -c "
        packages=\$(echo opt/venv/lib/python3.*/site-packages)
        (find bin etc lib lib64 sbin usr opt/venv -xdev -path \$packages -prune -o -print
         find \$packages/torch/include \$packages/nvidia -type f -path '*include*') |
        tar -cf - --format=posix --no-recursion -T -" | zstd -q -f -T0 -9 -o "$2/root.tar.zst"
    local key build toolkits
    toolkits=$(cd "$CACHE/toolkits" && ls -d */ninja | cut -d/ -f1)
    for key in "${@:3}"; do
        build=$(echo "$CACHE"/compile/"$key"*)
        toolkits+=" $(cd "$CACHE/toolkits" && ls -d */"$(cuda_home "$build")"/bin/nvcc | cut -d/ -f1)"
        tar -C "$CACHE/compile" --format=posix --exclude=.ninja_lock -cf - "$(basename "$build")" |
            zstd -q -f -T0 -9 -o "$2/build-$(basename "$build").tar.zst"
    done
    # shellcheck disable=SC2086  # every folder is an argument
    tar -C "$CACHE/toolkits" --format=posix -cf - $(printf '%s\n' $toolkits | sort -u) | zstd -q -f -T0 -9 -o "$2/toolkits.tar.zst"
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
    local build home toolkit tools headers objects flags=-objtemp
    build=$(echo $PLACE/builds/"$1"*)
    home=$(cuda_home "$build")
    objects=$(sed -n 's,^build \(.*\.o\): .*,\1,p' "$build"/src/build/temp.*/build.ninja | tail -n "${3:-+1}" | tr '\n' ' ')
    toolkit=$(printf '%s\n' $PLACE/toolkits/*/"$home" | head -n 1) tools=$(printf '%s\n' $PLACE/toolkits/*/ninja | head -n 1)
    headers=$(cd $PLACE/root && printf '/%s:' opt/venv/lib/python3.*/site-packages/nvidia/*/include)
    if "$toolkit/bin/nvcc" --help | grep -q -e -frandom-seed; then flags+=" -frandom-seed=1"; fi  # 12.4 lacks it
    unshare --mount bash -euc "
        mount --bind '$build' $PLACE/root/build
        mount --bind '${toolkit%/"$home"}' $PLACE/root/toolkit
        mount --bind '${tools%/*}' $PLACE/root/tools
        mount --rbind /dev $PLACE/root/dev
        mount --rbind /proc $PLACE/root/proc
        cd $PLACE/root
        exec chroot . env -i CUDA_HOME=/toolkit/$home HOME=/tmp LC_ALL=C.UTF-8 CPATH='${headers%:}' \
            PATH=/toolkit/$home/bin:/tools/bin:/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
            SOURCE_DATE_EPOCH=315532800 PYTHONHASHSEED=0 NVCC_APPEND_FLAGS='$flags' \
            bash -c 'cd /build/src/build/temp.* && exec nice ninja -k 0 -j $2 $objects'"
}

collect() {
    local build
    build=$(echo $PLACE/builds/"$1"*)
    (cd $PLACE/builds && find "$(basename "$build")"/src/build -name '*.o' -o -name .ninja_log -o -name .ninja_deps) |
        tar -C $PLACE/builds --format=posix -cf "$2/objects-$1.tar" -T -
    xz -T0 -3 -f "$2/objects-$1.tar"
}

"$@"
