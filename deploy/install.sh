#!/bin/sh
# Installs what lies beside this script, replaces another version, or removes what is installed.
#
#   ./install.sh                 into /
#   ./install.sh --uninstall     a configuration that was changed stays
#   DESTDIR=/some/root ./install.sh
#
# Everything that could prevent it is checked first, so that a failure leaves the machine as it was.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=${DESTDIR:-}
# What is installed: another version may have other files.
installed=usr/share/gpreempt/manifest

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

has_systemd() { [ -z "$root" ] && [ -d /run/systemd/system ]; }

is_older() {
    [ "$1" != "$2" ] && [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

# Whether programs of this package run here. With DESTDIR the root may be that of another machine.
check_machine() {
    [ -z "$root" ] || return 0
    read -r version machine glibc <"$here/about"
    this=$(uname -m)
    [ "$this" = "$machine" ] ||
        fail "this package is for $machine and this machine is $this;" \
            "use gpreempt-$version-$this.tar.gz"
    libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || libc=
    case $libc in
    glibc\ *) libc=${libc#glibc } ;;
    *)
        fail "the programs need glibc $glibc or newer, and this machine has another C library;" \
            "use the container image"
        ;;
    esac
    ! is_older "$libc" "$glibc" ||
        fail "the programs need glibc $glibc or newer, and this machine has $libc;" \
            "update the system, or use the container image"
}

check_rights() {
    for folder in usr etc; do
        mkdir -p "$root/$folder" 2>/dev/null ||
            fail "$root/$folder cannot be made; run this as root: sudo $0"
        probe=$root/$folder/.gpreempt-$$
        if ! (: >"$probe") 2>/dev/null; then
            [ -n "$root" ] || [ "$(id -u)" = 0 ] ||
                fail "only root can write to /$folder; run this as root: sudo $0"
            fail "$root/$folder is read-only; nothing was changed." \
                "Make it writable, or use the programs where they are, in $here/usr/bin"
        fi
        rm -f "$probe"
    done
}

check_packages() {
    [ -z "$root" ] || return 0
    if command -v dpkg-query >/dev/null &&
        dpkg-query -W -f '${Status}' gpreempt 2>/dev/null | grep -q ' installed$'; then
        fail "gpreempt is installed as a Debian package; remove it first: apt remove gpreempt"
    fi
    if command -v rpm >/dev/null && rpm -q gpreempt >/dev/null 2>&1; then
        fail "gpreempt is installed as an RPM package; remove it first: rpm -e gpreempt"
    fi
}

has_group() {
    grep -q '^gpreempt:' /etc/group ||
        { command -v getent >/dev/null && getent group gpreempt >/dev/null; }
}

check_group() {
    [ -z "$root" ] || return 0
    has_group || [ -x "$(command -v groupadd)" ] ||
        fail "the group gpreempt does not exist and groupadd is missing; make the group first," \
            "or install the package with groupadd (passwd or shadow-utils)"
}

# Where a file is installed: some systems have a folder of their own for 64-bit libraries.
place() {
    case $1 in
    usr/lib/*.so | usr/lib/pkgconfig/*)
        if [ -e "$root/usr/lib64/libc.so.6" ]; then
            echo "usr/lib64/${1#usr/lib/}"
            return
        fi
        ;;
    esac
    echo "$1"
}

is_answering() {
    [ -z "$root" ] && [ -x /usr/bin/gpreempt ] && /usr/bin/gpreempt ping >/dev/null 2>&1
}

install_all() {
    check_machine
    check_rights
    check_packages
    check_group
    new=$(mktemp)
    while read -r mode path; do
        target=$(place "$path")
        echo "$mode $target" >>"$new"
        case $path in
        etc/*) [ ! -e "$root/$target" ] || continue ;;
        esac
        install -D -m "$mode" "$here/$path" "$root/$target"
        case $target in
        usr/lib64/pkgconfig/*) sed -i 's|}/lib$|}/lib64|' "$root/$target" ;;
        esac
    done <"$here/manifest"
    if [ -f "$root/$installed" ]; then
        while read -r _ path; do
            case $path in
            etc/*) continue ;;
            esac
            grep -q " $path\$" "$new" || rm -f "$root/$path"
        done <"$root/$installed"
    fi
    install -D -m 644 "$new" "$root/$installed"
    rm -f "$new"
    [ -n "$root" ] || has_group || groupadd --system gpreempt
    if has_systemd; then
        systemctl daemon-reload
        # Only where it runs already. It restores what it changed and finds the same processes.
        systemctl try-restart gpreemptd.service || true
        echo "Installed. To start the service: systemctl enable --now gpreemptd"
    elif [ -n "$root" ]; then
        echo "Installed into $root."
    elif is_answering; then
        echo "Installed. The gpreemptd of the version before still runs;" \
            "end it with SIGTERM and start it again"
    else
        echo "Installed. systemd does not run here;" \
            "to start the daemon: gpreemptd --config /etc/gpreempt/config.toml"
    fi
}

uninstall_all() {
    check_rights
    if has_systemd; then
        # Stopped in order, it restores everything.
        systemctl disable --now gpreemptd.service 2>/dev/null || true
    fi
    ! is_answering ||
        fail "gpreemptd still runs; end it with SIGTERM first, so that it restores all GPU settings"
    list=$(mktemp)
    cat "$root/$installed" >"$list" 2>/dev/null || cat "$here/manifest" >"$list"
    while read -r _ path; do
        case $path in
        etc/*) cmp -s "$here/$path" "$root/$path" || continue ;;
        esac
        rm -f "$root/$path"
    done <"$list"
    rm -f "$list" "$root/$installed"
    for folder in etc/gpreempt usr/share/gpreempt usr/share/doc/gpreempt usr/share/fish \
        usr/share/zsh usr/share/bash-completion usr/lib/pkgconfig usr/lib64/pkgconfig; do
        [ ! -d "$root/$folder" ] || find "$root/$folder" -depth -type d -empty -delete
    done
    # A session that runs, or was killed, has its journal there.
    if [ -d "$root/run/gpreempt" ] && [ -z "$(find "$root/run/gpreempt" -name 'session-*')" ]; then
        rm -rf "$root/run/gpreempt"
    fi
    if has_systemd; then
        systemctl daemon-reload
    fi
    echo "Uninstalled."
    [ ! -e "$root/etc/gpreempt/config.toml" ] ||
        echo "$root/etc/gpreempt/config.toml was changed and stays."
}

case ${1:-} in
"") install_all ;;
--uninstall) uninstall_all ;;
*)
    echo "usage: install.sh [--uninstall]" >&2
    exit 2
    ;;
esac
