#!/bin/sh
# Installs what lies beside this script, or takes it away again.
#
#   ./install.sh                 into /
#   ./install.sh --uninstall     a configuration that was changed stays
#   DESTDIR=/some/root ./install.sh
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=${DESTDIR:-}

has_systemd() { [ -z "$root" ] && [ -d /run/systemd/system ]; }

install_all() {
    while read -r mode path; do
        case $path in
        etc/*) [ ! -e "$root/$path" ] || continue ;;
        esac
        install -D -m "$mode" "$here/$path" "$root/$path"
    done <"$here/manifest"
    [ -n "$root" ] || getent group gpreempt >/dev/null || groupadd --system gpreempt
    if has_systemd; then
        systemctl daemon-reload
    fi
    echo "Installed. To start the service: systemctl enable --now gpreemptd"
}

uninstall_all() {
    if has_systemd; then
        # Stopped in order, it puts everything back as it was.
        systemctl disable --now gpreemptd.service || true
    fi
    while read -r _ path; do
        case $path in
        etc/*) cmp -s "$here/$path" "$root/$path" || continue ;;
        esac
        rm -f "$root/$path"
    done <"$here/manifest"
    for folder in etc/gpreempt usr/share/gpreempt usr/share/doc/gpreempt; do
        [ ! -d "$root/$folder" ] || find "$root/$folder" -depth -type d -empty -delete
    done
    if has_systemd; then
        systemctl daemon-reload
    fi
    echo "Uninstalled."
}

case ${1:-} in
"") install_all ;;
--uninstall) uninstall_all ;;
*)
    echo "usage: install.sh [--uninstall]" >&2
    exit 2
    ;;
esac
