#!/usr/bin/env bash
# Everything that needs a GPU, in one go: tests, sanitizers, written modules, figures. Figures are left in build/results.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=src
failed=0

# A failure is named as soon as it is there: a run that is cut off tells of it too.
python3 -m pytest tests -m gpu -v -n "$(($(nproc) - 2))" -p no:cacheprovider | grep -vE "PASSED|^tests/[^ ]+::" || failed=1
python3 -m pytest tests -m sanitizer -n 4 -p no:cacheprovider | tail -3 || failed=1
PYTHONPATH=src:tests/support:tests/gpu python3 scripts/fuzz_gpu.py || failed=1
PYTHONPATH=src:tests/support:tests/gpu python3 scripts/soak_gpu.py || failed=1
python3 -m tilesmith check --all || failed=1
mkdir -p build/results
for suite in half fp32 tf32 ieee pack epilogue host override; do
  python3 -m tilesmith bench --suite "$suite" --record "build/results/$(date +%F)-$suite.json" || failed=1
done
python3 scripts/first_contact.py --json "build/results/$(date +%F)-first-contact.json" || failed=1
exit "$failed"
