#!/usr/bin/env bash
# The tests that need a device, WORKERS at a time, then those that must be alone there. Each failure is written at once
# to $OUT/failnow.txt. LIMIT, LIMIT_ALONE: seconds.
. benchmarks/accelerator/kit/setup.sh
export FAILNOW=$OUT/failnow.txt OMP_NUM_THREADS=2
run() {
    LINES_SHOWN=16 part "$1" pytest.log python3 -m pytest -p failnow -q -p no:cacheprovider -p no:benchmark \
        -o timeout=100 -o filterwarnings= --durations 12 "${@:2}" ${TESTS:-tests/gpu tests/interop/test_import_weights.py}
}
run "${LIMIT:-115}" -m "gpu and not alone" -n "${WORKERS:-12}" --dist worksteal
run "${LIMIT_ALONE:-40}" -m "gpu and alone"
echo "passed: $(grep -c '^passed' "$FAILNOW")"
grep '^failed' "$FAILNOW" | sort -u | cut -c -200
