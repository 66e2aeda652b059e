#!/usr/bin/env bash
# Everything that needs a GPU, in one go: tests, sanitizers, figures. Prints a short summary last.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=src
failed=0

# A failure is named as soon as it is there: a run that is cut off tells of it too.
python3 -m pytest tests -m gpu -v -n "$(($(nproc) - 2))" -p no:cacheprovider | grep -vE "PASSED|^tests/[^ ]+::" || failed=1
# The driver's bindings ask for symbols that the driver may not have: those are no errors of ours.
for tool in "memcheck --report-api-errors no" racecheck synccheck; do
  echo "== compute-sanitizer $tool"
  compute-sanitizer --tool $tool --error-exitcode 1 python3 scripts/sanitize.py 2>&1 | tail -2 || failed=1
done
python3 scripts/measure.py || failed=1
exit "$failed"
