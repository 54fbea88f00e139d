#!/usr/bin/env bash
# On a machine with a GPU and CuPy: the tests over CuPy's arrays, then the steps against PyTorch's.
#
#   tests/device.sh [FOLDER]    what is told is kept in FOLDER, by default where benchmarks keep it
#
# It uses the Python on PATH and installs nothing. PROCESSES and, in seconds, TESTS and BENCHMARKS limit it.
set -uo pipefail
cd "$(dirname "$0")/.."
kept=${1:-benchmarks/results}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} SINGANET_OPS=numpy OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
# Plugins that this Python happens to have are not asked.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONUNBUFFERED=1

timeout "${TESTS:-1500}" python3 -m pytest -p xdist.plugin -p _hypothesis_pytestplugin \
    -n "${PROCESSES:-$(nproc)}" --dist worksteal -m device -q --tb=short --maxfail=300 \
    -W "ignore::DeprecationWarning" -W "ignore::PendingDeprecationWarning" \
    --durations=20 -o cache_dir=/tmp/device-tests > "$kept/device_tests.txt" 2>&1
status=$?
tail -n 60 "$kept/device_tests.txt"

timeout "${BENCHMARKS:-900}" python3 benchmarks/gpu.py ${ROWS:+--rows $ROWS} 2>&1 | tee "$kept/device_benchmarks.txt"
exit "$status"
