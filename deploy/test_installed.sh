#!/bin/bash
# What a package has installed in a root of its own, used: the daemon and loads on an emulated GPU.
#
#   test_installed.sh ROOT [--version TEXT] [--replace COMMAND] [--memory]
#
# `cargo xtask dist --check` runs it in namespaces of its own: whatever it starts and mounts ends
# with it. --replace installs a version while processes are controlled; --memory measures the daemon
# with 32 processes. What it says ends with `exit 0` if every check held.
set -u

root=$1
shift
version=
replace=
memory=
while (($#)); do
    case $1 in
    --replace)
        replace=$2
        shift 2
        ;;
    --version)
        version=$2
        shift 2
        ;;
    --memory)
        memory=yes
        shift
        ;;
    esac
done

# KiB that the daemon may have in memory while it schedules 32 processes. Most of it is code.
resident_max=10240
failed=0

check() {
    local what=$1
    shift
    if "$@" >/dev/null; then
        echo "pass  $what"
    else
        echo "FAIL  $what"
        failed=1
    fi
}

# Waits until a command succeeds; the machine may be busy.
soon() {
    local i
    for ((i = 0; i < 300; i++)); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.1
    done
    return 1
}

# Not for processes in the background: the shell would know a shell as their process.
in_root() { chroot "$root" "$@"; }

mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mkdir -p "$root/run/gpreempt"
log=$root/run/log
mkdir "$log"

start_daemon() {
    chroot "$root" /usr/bin/gpreemptd --config /etc/gpreempt/config.toml --no-nvidia --no-amd \
        --emulated /run/gpu >>"$log/daemon" 2>&1 &
    daemon=$!
    soon in_root /usr/bin/gpreempt ping
}

stop_daemon() {
    kill -TERM "$daemon"
    wait "$daemon"
}

load() {
    local name=$1 priority=$2
    shift 2
    GPREEMPT_PRIORITY=$priority chroot "$root" "$@" --socket /run/gpu --json \
        >"$log/$name" 2>&1 &
}

listed() { in_root /usr/bin/gpreempt ps | grep -E -- "$1"; }
preempted() { in_root /usr/bin/gpreempt ps --json | grep -E '"preempts": ?[1-9]'; }
says() { in_root /usr/bin/gpreempt doctor 2>&1 | grep -F -- "$1"; }
# How many kernels the best-effort load has done so far.
done_by_be() {
    local total
    total=$(grep -o '"total":[0-9]*' "$log/be" | tail -1 | cut -d: -f2)
    # It reports once per second.
    echo "${total:-0}"
}
runs_on() { (($(done_by_be) > $1)); }
exact() { grep -qE '"exactness":.*"pass"' "$log/$1"; }

for program in gpreempt gpreemptd gpreempt-load gpreempt-emu; do
    said=$(in_root "/usr/bin/$program" --version)
    check "$program says its version" grep -F -- "$version" <<<"$said"
done
explained=$(in_root /usr/bin/gpreemptd --check --config /etc/gpreempt/config.toml)
check "gpreemptd explains its configuration" test -n "$explained"
check "doctor says what to do without a daemon" says "gpreemptd is not running"
in_root /usr/bin/gpreempt-emu --socket /run/gpu --machine cwsr --compute-units 1 &
check "the emulated GPU starts" soon test -S "$root/run/gpu"
check "the daemon starts and answers" start_daemon
# It fills the GPU, so that the other load has to wait for it.
load be 2 /usr/bin/gpreempt-load be --seconds 600 --kernel-us 20000 --groups 256
be=$!
load lc 12 /usr/bin/gpreempt run -p 12 /usr/bin/gpreempt-load lc --seconds 600 --every-us 200000 \
    --kernels 2 --groups 1
check "the first process is protected" soon listed 'gpreempt-load +.*\b12\b'
echo "protected at $(date +%s%N)"
check "the other process is preempted for it" soon preempted
check "doctor says that the daemon runs" says "gpreemptd runs"

if [[ -n $replace ]]; then
    check "another version is installed while both run" bash -c "$replace"
    check "the old daemon works until it is restarted" listed 'gpreempt-load +.*\b12\b'
    check "it ends" stop_daemon
    check "nothing is stopped then" soon runs_on "$(done_by_be)"
    check "the other version starts" start_daemon
    check "it schedules the same process" soon listed 'gpreempt-load +.*\b12\b'
    check "the other process runs in the gaps" soon runs_on "$(done_by_be)"
fi

all_listed() { (($(in_root /usr/bin/gpreempt ps | grep -c gpreempt-load) >= 32)); }
resident() { sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' "$root/proc/$daemon/status"; }
is_small() { (($(resident) < resident_max)); }
if [[ -n $memory ]]; then
    for ((i = 0; i < 30; i++)); do
        load "many$i" 3 /usr/bin/gpreempt-load be --seconds 600 --kernel-us 20000
        many+=("$!")
    done
    check "32 processes are scheduled" soon all_listed
    sleep 2
    echo "resident $(resident) KiB with 32 processes"
    check "the daemon is small" is_small
    kill -TERM "${many[@]}"
fi

check "the daemon ends" stop_daemon
check "nothing is stopped afterwards" soon runs_on "$(done_by_be)"
kill -TERM "$be"
wait "$be"
check "no kernel was lost or done twice" exact be

((failed)) && cat "$log/daemon"
echo "exit $failed"
((failed == 0))
