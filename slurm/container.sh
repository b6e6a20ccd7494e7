# Runs a command in an image, on the node; `bash -c` of it is what srun starts (rollpacker/launch/container.py).
#
#   RUNTIME SCRATCH... -- BIND... -- OPTION... IMAGE COMMAND...
#
# Only what a node alone knows is decided here. The first SCRATCH that is set and writable holds a private folder, which
# the image sees as /tmp: large, local, and short enough for the paths of sockets. BIND is SOURCE:TARGET[:ro].
# shellcheck shell=bash
set -euo pipefail

expand() { # PATH with $NAME or ${NAME} in it; fails where one is unset or empty
    local rest="$1" expanded="" name
    while [[ "$rest" =~ ^([^$]*)\$\{?([A-Za-z_][A-Za-z_0-9]*)\}?(.*)$ ]]; do
        name="${BASH_REMATCH[2]}" rest="${BASH_REMATCH[3]}"
        [[ -n "${!name:-}" ]] || return 1
        expanded+="${BASH_REMATCH[1]}${!name}"
    done
    printf '%s' "$expanded$rest"
}

can_hold_files() { mkdir -p "$1" && [[ -O "$1" && ! -L "$1" ]] && chmod 700 "$1" && [[ -w "$1" ]]; } 2>/dev/null

runtime="$1" private="" refused=()
while shift && [[ "$1" != -- ]]; do
    if [[ -n "$private" ]]; then continue; fi
    if folder="$(expand "$1")" && can_hold_files "$folder/rollpacker-$UID"; then
        private="$folder/rollpacker-$UID"
    else
        refused+=("$1")
    fi
done
if [[ -z "$private" ]]; then
    printf '%s\n' "On ${HOSTNAME:-this node} no folder of cluster.scratch holds files: ${refused[*]}." \
        "One is needed that is set there, writable, and on the node itself." "Put one in front, such as cluster.scratch=[/tmp]." >&2
    exit 1
fi

binds=(--bind "$private:/tmp")
if [[ -d /dev/infiniband ]]; then binds+=(--bind /dev/infiniband); fi
while shift && [[ "$1" != -- ]]; do
    IFS=: read -r source target _ <<<"$1"
    if [[ "$target" == /tmp/* ]]; then # what is bound below a bound folder needs its place there
        place="$private/${target#/tmp/}"
        if [[ -d "$source" ]]; then mkdir -p "$place"; else mkdir -p "$(dirname "$place")" && touch "$place"; fi
    fi
    binds+=(--bind "$1")
done
shift
exec "$runtime" exec "${binds[@]}" "$@"
