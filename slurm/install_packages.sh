#!/usr/bin/env bash
# Installs what a Slurm cluster on one machine needs, on Debian or Ubuntu: Slurm's daemons, munge, MariaDB for accounting,
# Apptainer; bubblewrap for the code sandbox; and shellcheck, which reads the scripts. Where all is there it ends at once.
# Needs root or sudo. Exits with 3 where it cannot install at all, having said what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly CANNOT_INSTALL=3
readonly PACKAGES=(
    slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge
    slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core
    iproute2 util-linux shellcheck bubblewrap
)

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }

give_up() {
    printf 'not installed: %s\n' "$@" >&2
    exit "$CANNOT_INSTALL"
}

is_installed() { [[ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]; }

missing=()
as_root=()

find_missing() {
    local package
    missing=()
    for package in "${PACKAGES[@]}"; do
        is_installed "$package" || missing+=("$package")
    done
}

require_apt() {
    command -v apt-get >/dev/null && command -v dpkg-query >/dev/null && return
    give_up \
        "this machine has no apt-get, and the mini cluster's packages are known by Debian's names only" \
        "install Slurm (slurmctld, slurmd, slurmdbd, clients), munge, MariaDB and shellcheck by hand"
}

# A Slurm that an administrator built is not to be replaced by Debian's.
require_no_other_slurm() {
    command -v sinfo >/dev/null && ! is_installed slurm-client || return 0
    give_up \
        "this machine has a Slurm of its own, $(command -v sinfo), which Debian's packages would replace" \
        "install by hand, from where that Slurm came: ${missing[*]}"
}

require_root() {
    [[ $EUID -eq 0 ]] && return
    { command -v sudo && sudo -n true; } >/dev/null 2>&1 || give_up \
        "user $(id -un) is not root and may not use sudo without a password" \
        "ask an administrator for: apt-get install ${missing[*]}"
    as_root=(sudo)
}

# One apt-get at a time, here and in .ci/install.sh: see there.
apt_get() {
    flock --close "$(command -v apt-get)" \
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@"
}

require_apt
find_missing
if ((${#missing[@]})); then
    require_no_other_slurm
    require_root
    say "installing with apt-get: ${missing[*]}"
    apt_get update -qq || true # an old list may still know the packages
    apt_get install -y -qq --no-install-recommends "${missing[@]}"
fi

# Ubuntu has no package of it that can be checked: Slurm is of use without
bash install_apptainer.sh || say "Apptainer is not installed: what runs in containers needs it"
