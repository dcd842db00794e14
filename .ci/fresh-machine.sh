#!/bin/bash
# Try the README's commands on a machine fresh from the installer: Debian with python3 and pip, no venv
# (ensurepip), make, compiler or PostgreSQL, and a pip that will not touch the system.
#
#   .ci/fresh-machine.sh                      each "python3 -m venv ..." line of the README, as root and as a user
#   .ci/fresh-machine.sh root 'COMMAND'       one command as root
#   .ci/fresh-machine.sh someone 'COMMAND'    one command as a new ordinary user
#
# Needs root, git and debootstrap. The machine's disk is in memory and gone afterwards; what debootstrap made
# stays in ~/.cache. The mirrors, proxies and certificates that pip and apt use here are used there, too.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${SUITE:-bookworm}
base=${XDG_CACHE_HOME:-$HOME/.cache}/pyworker/$suite

if ! [ -e "$base/usr/bin/pip3" ]; then
    # shellcheck disable=SC2016 # apt expands it
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Release: $suite" | head -n 1) || mirror=
    rm -rf "$base" && mkdir -p "$base"
    # Without a mirror, debootstrap has its own.
    debootstrap --variant=minbase --include=python3,python3-pip,ca-certificates "$suite" "$base" ${mirror:+"$mirror"} >"$base.log" || {
        tail "$base.log"
        exit 1
    }
fi

# In namespaces of its own: mounts and stray processes end with it.
# shellcheck disable=SC2016
try() {
    who=$1 command=$2 base=$base unshare --mount --pid --fork --kill-child bash -euo pipefail -c '
        disk=$(mktemp -d) && trap "umount -R $disk && rmdir $disk" EXIT
        mount -t tmpfs tmpfs "$disk" && mkdir "$disk"/{changes,work,all}
        root=$disk/all
        mount -t overlay overlay -o "lowerdir=$base,upperdir=$disk/changes,workdir=$disk/work" "$root"
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev" && mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"

        # The network as it is here.
        bring() { if [ -e "$1" ]; then mkdir -p "$root$(dirname "$1")" && cp -rLT "$1" "$root$1"; fi; }
        for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt /etc/pip.conf; do bring "$file"; done
        for name in $(compgen -e | grep -E "^(PIP_.*|SSL_CERT_FILE|(https?|all|no)_proxy|(HTTPS?|ALL|NO)_PROXY)$"); do
            printf "export %s=%q\n" "$name" "${!name}"
            case ${!name} in /*) bring "${!name}" ;; esac
        done >"$root/network"

        if [ "$who" != root ]; then chroot "$root" useradd --create-home "$who"; fi
        home=$(chroot "$root" bash -c "echo ~$who") && chmod 700 "$root$home"
        for file in .config/pip/pip.conf .pip/pip.conf; do
            if [ -e "$HOME/$file" ]; then mkdir -p "$root/etc" && cp -L "$HOME/$file" "$root/etc/pip.conf"; fi
        done
        mkdir "$root$home/pyworker"
        git ls-files -z --cached --others --exclude-standard |
            tar --null --files-from=- --ignore-failed-read -c | tar -C "$root$home/pyworker" -x
        chroot "$root" chown -R "$who:" "$home/pyworker"
        printf "%s\n" ". /network" "cd $home/pyworker" "$command" >"$root/command"
        chroot "$root" env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 su "$who" -c "HOME=$home bash -e /command"
    ' </dev/null
}

report() {
    local began=$SECONDS result=FAILED
    printf '== as %s: %s\n' "$1" "$2"
    if try "$1" "$2"; then result=ok; fi
    printf '== %s after %d s, as %s: %s\n' "$result" $((SECONDS - began)) "$1" "$2"
    [ $result = ok ]
}

if [ $# = 2 ]; then
    report "$1" "$2"
    exit
fi
mapfile -t commands < <(sed -nE 's/^ *(python3 -m venv .*)/\1/p' README.md)
[ ${#commands[@]} -gt 0 ] || { echo "README.md has no line that begins with: python3 -m venv" && exit 1; }
failed=0
for command in "${commands[@]}"; do
    for who in root someone; do report "$who" "$command" || failed=1; done
done
exit $failed
