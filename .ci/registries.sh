# shellcheck shell=bash
# The registries that pip is configured for, for uv too, which reads no settings of pip. Sourced where uv installs.

# Prints what pip would use, here and now: `pip_setting PYTHON KEY`.
pip_setting() {
    local variable="PIP_${2^^}" listed from value words
    variable="${variable//-/_}"
    value="${!variable:-}"
    listed="$("$1" -m pip config list 2>/dev/null || true)"
    for from in install global; do
        if [[ -n "$value" ]]; then break; fi
        value="$(sed -n "s/^$from\.$2=['\"]\(.*\)['\"]\$/\1/p" <<<"$listed")"
    done
    read -ra words <<<"${value//\\n/ }"
    printf '%s' "${words[*]}"
}

# Exports what pip is told as uv names it, unless variables tell uv itself: `use_registries_of_pip PYTHON`.
use_registries_of_pip() {
    [[ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX:-}${UV_INDEX_URL:-}${UV_EXTRA_INDEX_URL:-}" ]] || return 0
    local pair variable value
    for pair in UV_DEFAULT_INDEX=index-url UV_INDEX=extra-index-url UV_INSECURE_HOST=trusted-host SSL_CERT_FILE=cert; do
        variable="${pair%=*}"
        value="$(pip_setting "$1" "${pair#*=}")"
        if [[ -n "$value" && -z "${!variable:-}" ]]; then export "$variable=$value"; fi
    done
    # pip compares the versions of all its registries; uv takes those of the first that has the package.
    if [[ -n "${UV_INDEX:-}" ]]; then export UV_INDEX_STRATEGY="${UV_INDEX_STRATEGY:-unsafe-best-match}"; fi
}
