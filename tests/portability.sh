#!/usr/bin/env bash
# The tests on machines that are not this one: other processors, Pythons, packages, users, languages, orders.
#
#   tests/portability.sh             every stand-in, and a line on what came of each
#   tests/portability.sh NAME ...    those named, see `run` below
#
# TESTS adds arguments of pytest, such as "-m 'not slow'". Environments are made in a temporary folder,
# or kept in the folder ENVIRONMENTS where that is set, with a log of each run.
# PYTHONS names the interpreters to try, oldest first; the oldest gets the oldest packages allowed.
set -uo pipefail
cd "$(dirname "$0")/.."

made=${ENVIRONMENTS:-$(mktemp -d)}
[ -n "${ENVIRONMENTS:-}" ] || trap 'rm -rf "$made"' EXIT
mkdir -p "$made"
read -ra pythons <<< "${PYTHONS:-$(for v in 3.10 3.11 3.12 3.13 3.14; do
    command -v "python$v" || ls -d ~/.pyenv/versions/"$v".*/bin/python3 2>/dev/null | tail -n 1
done | tr '\n' ' ')}"
export SINGANET_ROUTES=off OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
export UV_FIND_LINKS="${PIP_FIND_LINKS:-$(pip config get global.find-links 2>/dev/null || true)}"
unset SINGANET_OPS

# Rooms in which a processor, a BLAS or oneDNN can make another number.
numbers=(tests/{budget,decoding,engine,executor,gradients,layers,loss,metric,models,offload,ops,optimizer}
    tests/{parallel,program,summary,training} tests/test_freeze.py tests/test_net.py)

# The interpreter of an environment: environment NAME PYTHON RESOLUTION.
environment() {
    local python="$made/$1/bin/python"
    if [ ! -x "$python" ]; then
        python3 -m venv "$made/uv" && "$made/uv/bin/pip" install --quiet uv || return
        "$made/uv/bin/uv" venv --quiet --python "$2" "$made/$1" || return
        "$made/uv/bin/uv" pip install --quiet --python "$python" --resolution "$3" \
            -e '.[dev,mpi,onednn]' pytest-randomly || return
    fi
    echo "$python"
}

# Runs pytest and adds a row: stand_in NAME PYTHON [VARIABLE=VALUE ...] -- [ARGUMENTS OF PYTEST ...]
# Those of `as` and `order` are of the one who calls: another user, an order drawn at random.
failed=0 as=() order=(-p no:randomly)
stand_in() {
    local name=$1 python=$2 set=() start=$SECONDS outcome
    shift 2
    while [ "$1" != -- ]; do set+=("$1"); shift; done
    shift
    local log="$made/$name.log"
    env PYTHONPYCACHEPREFIX="$made/bytecode" "${set[@]}" "${as[@]}" "$python" -m pytest -n 2 \
        -p no:cacheprovider "${order[@]}" ${TESTS:-} "$@" > "$log" 2>&1 || failed=1
    outcome=$(grep -E '^=+ .*(passed|failed|error)' "$log" | tail -n 1 | tr -d '=')
    printf '%-18s %4d s  %s\n' "$name" $((SECONDS - start)) "${outcome:-did not run, see $log}"
    grep -E '^(FAILED|ERROR) ' "$log" | cut -c1-150
}

usual=$(environment usual "${pythons[-1]}" highest) || exit 2

run() {
    case $1 in
    # Processors: OpenBLAS's kernels and NumPy's own loops, then oneDNN's.
    haswell) stand_in "$1" "$usual" OPENBLAS_CORETYPE=Haswell SINGANET_OPS=numpy -- "${numbers[@]}" ;;
    skylake) stand_in "$1" "$usual" OPENBLAS_CORETYPE=SkylakeX SINGANET_OPS=numpy -- "${numbers[@]}" ;;
    zen) stand_in "$1" "$usual" OPENBLAS_CORETYPE=Zen SINGANET_OPS=numpy -- "${numbers[@]}" ;;
    prescott) stand_in "$1" "$usual" OPENBLAS_CORETYPE=Prescott SINGANET_OPS=numpy \
        NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR" -- "${numbers[@]}" ;;
    avx2 | avx512_core | avx512_core_bf16) stand_in "$1" "$usual" "ONEDNN_MAX_CPU_ISA=${1^^}" -- "${numbers[@]}" ;;
    # Pythons, with the oldest and newest packages that are allowed.
    oldest) stand_in "$1" "$(environment oldest "${pythons[0]}" lowest-direct)" -- ;;
    newest) stand_in "$1" "$usual" -- ;;
    # Users and their settings.
    user)
        local home as=(setpriv --reuid=nobody --clear-groups)
        home=$(mktemp -d) && chown nobody "$home" && chmod -R a+rwX "$made"
        stand_in "$1" "$usual" "HOME=$home" "TMPDIR=$home" -- ;;
    locale) stand_in "$1" "$usual" LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 -- ;;
    tmpdir)
        mkdir -p "$made/a folder, größer"
        stand_in "$1" "$usual" "TMPDIR=$made/a folder, größer" -- ;;
    umask)
        local before
        before=$(umask) && umask 077
        stand_in "$1" "$usual" --
        umask "$before" ;;
    order)
        local order=()
        stand_in "$1" "$usual" -- ;;
    *) echo "no stand-in is called $1" >&2 && exit 2 ;;
    esac
}

names=(haswell skylake zen prescott avx2 avx512_core avx512_core_bf16 oldest newest user locale tmpdir umask order)
for name in "${@:-${names[@]}}"; do run "$name"; done
exit "$failed"
