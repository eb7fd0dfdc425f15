#!/usr/bin/env bash
# Run what is waiting on a machine with GPUs and no network: this goes on between calls, so that none is spent on waiting.
#
#   lease_driver.sh start GROUP...     the first: copies the checkout to where no transfer reaches, and begins: the engine,
#                                              then the groups of images one after the other
#   lease_driver.sh keep PART...       copy these carried folders there too
#   lease_driver.sh ready GROUP        say that a group (`tools`, or one of images) has arrived whole
#   lease_driver.sh queue NN GROUP ARGUMENT...   when the group is loaded, `knowngood ARGUMENT...`; in the order of NN
#                                              (`packages/knowngood/scripts/NAME.py ARGUMENT...` runs that script, `env` and `bash` run as
#                                              they are; a group without images is loaded when it is ready; with NN+ the
#                                              next item does not wait for it)
#   lease_driver.sh hold SECONDS WORDS   wait until the driver's log has the words; a machine is lost 30 s after a call
#   lease_driver.sh show               what has happened, and the end of each log
#   lease_driver.sh evidence OUT       the new evidence as an archive
#
# The parts are those of lease_parts.py. A first call starts and keeps a part of `tools`, further ones bring a part
# each, and the last of a group says ready. Programs that are started from here need `setsid`, which `start` does itself.
# All but `start` refuse on a machine where it did not run: another one than that of the calls before.
set -eu
HOME_OF_ALL=/tmp/knowngood-lease
IN=$HOME_OF_ALL/in ROOT=$HOME_OF_ALL/checkout LOGS=$HOME_OF_ALL/logs QUEUE=$HOME_OF_ALL/queue TOOLS=$HOME_OF_ALL/tools
export DOCKER_HOST=unix:///run/knowngood-gpu.sock XDG_CACHE_HOME=$HOME_OF_ALL/cache PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=$ROOT/packages/knowngood/src:$ROOT/packages/knowngood-facts/src:$ROOT/packages/knowngood-diagnose/src:$TOOLS/packages PATH=$TOOLS/bin:$PATH
if [ "$1" = start ]; then
    mkdir -p "$IN" "$LOGS" "$QUEUE" "$XDG_CACHE_HOME" "$ROOT" && cp -r ./* "$ROOT"
elif [ ! -e "$LOGS/driver" ]; then
    echo "the driver was not started on this machine, so what was sent before is not here" >&2
    exit 3
fi

say() { echo "$(date +%T) $*" >>"$LOGS/driver"; }
wait_for() { until [ -e "$1" ]; do sleep 0.5; done; }

keep() {
    local part
    for part in "$@"; do cp -r "$part"/. "$IN"; done
}

ready() {
    local first
    for first in "$IN"/*.split00; do
        if [ -e "$first" ]; then cat "${first%00}"?? >"${first%.split00}" && rm "${first%00}"??; fi
    done
    touch "$HOME_OF_ALL/ready-$1"
    if [ "$1" != tools ] && [ ! -e "$IN/images-$1.json" ]; then touch "$HOME_OF_ALL/loaded-$1"; fi
}

start() {
    say "started for $*"
    setsid "$0" drive "$@" >"$LOGS/driver.out" 2>&1 </dev/null &
}

drive() {
    wait_for "$HOME_OF_ALL/ready-tools"
    mkdir -p "$TOOLS" && tar -C "$TOOLS" -xzf "$IN/tools.tar.gz"
    cd "$ROOT"
    python3 packages/knowngood/scripts/gpu_images.py "$TOOLS" >"$LOGS/engine" 2>&1
    say "the engine is up"
    touch "$HOME_OF_ALL/loaded-tools"
    (for group in "$@"; do load "$group"; done) &
    local item group
    while :; do
        for item in "$QUEUE"/*; do
            [ -e "$item" ] || continue
            group=$(head -n 1 "$item")
            [ -e "$HOME_OF_ALL/loaded-$group" ] || continue
            mv "$item" "$QUEUE/../taken-${item##*/}"
            item="$QUEUE/../taken-${item##*/}"
            case $item in *+) run "$item" & ;; *) run "$item" ;; esac
            continue 2
        done
        sleep 0.5
    done
}

load() {
    wait_for "$HOME_OF_ALL/ready-$1"
    mkdir -p "$HOME_OF_ALL/load-$1"
    ln -f "$IN"/* "$HOME_OF_ALL/load-$1" && cp "$IN/images-$1.json" "$HOME_OF_ALL/load-$1/images.json"
    if python3 packages/knowngood/scripts/carry_image.py load "$HOME_OF_ALL/load-$1" >"$LOGS/load-$1" 2>&1; then
        touch "$HOME_OF_ALL/loaded-$1"
    fi
    say "load $1: $?"
}

run() {
    local name words
    name=${1##*/taken-}
    mapfile -t words < <(tail -n +2 "$1")
    rm "$1"
    say "begin $name: ${words[*]}"
    case ${words[0]} in
        env | bash) ;;
        packages/knowngood/scripts/*) words=(python3 "${words[@]}") ;;
        *) words=(python3 -m knowngood "${words[@]}") ;;
    esac
    if "${words[@]}" >"$LOGS/$name" 2>&1; then say "end $name: good"; else say "end $name: $?"; fi
}

queue() { printf '%s\n' "${@:2}" >"$QUEUE/$1"; }

hold() { timeout "$1" bash -c "until grep -q -e '$2' '$LOGS/driver'; do sleep 0.5; done" || true; show; }

show() {
    cat "$LOGS/driver"
    local log
    for log in "$LOGS"/[!d]*; do echo "== $log"; tail -n 3 "$log" | cut -c1-300; done
}

evidence() {
    cd "$ROOT"
    find evidence -name '*.json' -newer "$LOGS/engine" 2>/dev/null | tar -czf "$1/evidence.tar.gz" -T -
}

"$@"
