#!/usr/bin/env bash
# Makes Apptainer available: `install_apptainer.sh [PREFIX]`, PREFIX=/opt/apptainer unless given. Debian 12 and newer, root or sudo.
# Where an `apptainer` is on the PATH, or in PREFIX, it ends at once. Exits with 3 where it cannot install at all.
#
# Debian 12 has no Apptainer package, so it is taken from Debian's unstable suite, from the mirror that this machine's own
# apt uses. Its C library is newer than the machine's: it is unpacked beside it, and only Apptainer's two programs use it.
set -euo pipefail

readonly CANNOT_INSTALL=3
PREFIX="$(realpath --canonicalize-missing "${1:-/opt/apptainer}")"
readonly PREFIX
readonly PROGRAM="$PREFIX/usr/bin/apptainer"
readonly LINK=/usr/local/bin/apptainer
# What Apptainer calls to make and mount images, and what unpacks it here.
readonly TOOLS=(squashfs-tools squashfuse uidmap fakeroot fuse-overlayfs mmdebstrap patchelf)
readonly KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
# Ids that `apptainer build --fakeroot` lends to the users inside an image.
readonly SUBORDINATE_IDS=1000000:65536

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }

give_up() {
    printf 'not installed: %s\n' "$@" >&2
    exit "$CANNOT_INSTALL"
}

as_root=()

require_root() {
    [[ $EUID -eq 0 || ${#as_root[@]} -gt 0 ]] && return
    { command -v sudo && sudo -n true; } >/dev/null 2>&1 || give_up \
        "user $(id -un) is not root and may not use sudo without a password" \
        "ask an administrator for Apptainer"
    as_root=(sudo)
}

require_debian() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null && [[ -r $KEYRING ]] && return
    give_up \
        "this machine is not a Debian: it has no apt-get, no dpkg-deb or no $KEYRING" \
        "install Apptainer 1.3 or newer as its documentation says for this system"
}

# One apt-get at a time, here and in .ci/install.sh: see there.
apt_get() {
    flock --close "$(command -v apt-get)" \
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@"
}

is_installed() { [[ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]; }

install_tools() {
    local tool missing=()
    for tool in "${TOOLS[@]}"; do
        is_installed "$tool" || missing+=("$tool")
    done
    ((${#missing[@]})) || return 0
    require_root
    say "installing with apt-get: ${missing[*]}"
    apt_get update -qq || true # an old list may still know the packages
    apt_get install -y -qq --no-install-recommends "${missing[@]}"
}

# Where this machine gets Debian itself from, which has every suite.
debian_mirror() {
    # shellcheck disable=SC2016  # the variable is apt's
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1
}

# Fetches packages of the unstable suite into the current folder, by lists of their own: the machine's stay as they are.
download_unstable() {
    local mirror options
    mirror="$(debian_mirror)"
    [[ -n "$mirror" ]] || give_up \
        "apt's configuration names no mirror of Debian, or its lists were never fetched" \
        "run apt-get update, and see that /etc/apt/sources.list names the main archive"
    mkdir -p lists/partial cache/archives/partial
    echo "deb [signed-by=$KEYRING] $mirror sid main" >sources.list
    options=(
        -o "Dir::Etc::sourcelist=$PWD/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$PWD/lists"
        -o "Dir::Cache=$PWD/cache" -o "APT::Sandbox::User=$(id -un)" -o Acquire::Languages=none
    )
    apt-get "${options[@]}" -qq update
    apt-get "${options[@]}" -qq download "${@/%//sid}"
}

unpack() {
    local tree=$1 library
    dpkg-deb --extract apptainer_*.deb "$tree"
    for library in libc6 libseccomp2 libsqlite3-0; do
        dpkg-deb --extract "${library}"_*.deb libraries
    done
    mkdir "$tree/libraries"
    cp --archive libraries/usr/lib/*-linux-gnu*/*.so* "$tree/libraries/"
    # `apptainer` looks for its etc and var below usr, its `starter` below usr/lib.
    mv "$tree/etc" "$tree/usr/etc"
    mv "$tree/var" "$tree/usr/var"
    ln --symbolic ../etc "$tree/usr/lib/etc"
    ln --symbolic ../var "$tree/usr/lib/var"
    find libraries -name 'ld-linux*.so*' -printf '%f\n' -quit >interpreter
}

# The programs name the place where they are used, so this comes after the last move.
use_own_libraries() {
    local tree=$1 program
    for program in "$tree"/usr/bin/apptainer "$tree"/usr/lib/*/apptainer/bin/starter; do
        patchelf --set-interpreter "$PREFIX/libraries/$(<interpreter)" --force-rpath --set-rpath "$PREFIX/libraries" "$program"
    done
}

lend_ids() {
    local file user
    user="$(id -un)"
    for file in /etc/subuid /etc/subgid; do
        grep --quiet "^$user:" "$file" 2>/dev/null && continue
        require_root
        echo "$user:$SUBORDINATE_IDS" | "${as_root[@]}" tee --append "$file" >/dev/null
    done
}

finish() {
    lend_ids
    if [[ ! -e $LINK ]]; then
        require_root
        "${as_root[@]}" ln --symbolic "$PROGRAM" "$LINK"
    fi
    say "$("$PROGRAM" --version) in $PREFIX"
    exit 0
}

if [[ $# -eq 0 ]] && found="$(command -v apptainer)" && [[ "$(realpath "$found")" != "$PROGRAM" ]]; then
    say "$(apptainer --version) is already at $found"
    exit 0
fi
require_debian
install_tools
"$PROGRAM" --version >/dev/null 2>&1 && finish

require_root
work="$(mktemp --directory)"
trap 'rm -rf "$work"' EXIT
cd "$work"
say "unpacking Apptainer in $PREFIX"
download_unstable apptainer libc6 libseccomp2 libsqlite3-0
unpack tree
use_own_libraries tree
"${as_root[@]}" rm -rf "$PREFIX"
"${as_root[@]}" mkdir -p "$(dirname "$PREFIX")"
"${as_root[@]}" mv tree "$PREFIX"
"${as_root[@]}" chown --recursive root:root "$PREFIX"
finish
