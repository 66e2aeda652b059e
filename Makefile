# `make demo` and `make test` set up everything they need in .venv. A second run starts in seconds.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CUDA_SOURCES := $(shell find src -name '*.cu' -o -name '*.cuh' -o -path '*/emulator/cxx/*.h' -o -path '*/emulator/cxx/*.cpp')

.PHONY: demo test test-quick lint test-host test-sass test-gpu test-sanitizer fuzz-gpu soak-gpu results browser wheel format clean

demo: $(VENV)/ready
	PYTHONPATH=src $(BIN)/python -m tilesmith demo

test: lint test-host

lint: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CUDA_SOURCES)

# There is a worker for each core already. Threads of theirs would wait for each other by spinning.
test-host test-sass test-quick: export OMP_NUM_THREADS := 1
test-host test-sass test-quick: export OPENBLAS_NUM_THREADS := 1
test-host: browser
	PYTHONPATH=src $(BIN)/python -m pytest tests src docs -m "not gpu and not sass" -n auto --dist loadgroup

test-sass: $(VENV)/ready
	PYTHONPATH=src $(BIN)/python -m pytest tests/host -m sass -n auto --dist loadgroup

# The inner loop.
QUICK := imports params source rates problem errors gemv skinny kernel_parts emulator_headers emulator_emulate
test-quick: lint
	PYTHONPATH=src $(BIN)/python -m pytest $(QUICK:%=tests/host/test_%.py) -m "not sass" -n auto --dist loadgroup -q

# The page of a benchmark is tested in Chromium. Where it cannot be installed here, the tests say that it is missing.
browser: $(VENV)/ready
	@$(BIN)/python tests/support/browser.py || [ "$$(id -u)" != 0 ] || ! command -v apt-get > /dev/null || \
	{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium-headless-shell > /dev/null; }

test-gpu: $(VENV)/ready
	PYTHONPATH=src $(BIN)/python -m pytest tests -m gpu -n 4

test-sanitizer: $(VENV)/ready
	PYTHONPATH=src $(BIN)/python -m pytest tests -m sanitizer -n 4

# 20,000 random products against float64; and 300 that must keep their bits on a busy GPU. ARGS="--seed 1" draws others.
fuzz-gpu soak-gpu: $(VENV)/ready
	PYTHONPATH=src:tests/support:tests/gpu $(BIN)/python scripts/$(subst -,_,$@).py $(ARGS)

# The page of figures from the recorded runs. A new run: tilesmith bench --suite NAME --record docs/results/DATE-NAME.json
results: $(VENV)/ready
	PYTHONPATH=src $(BIN)/python -m tilesmith bench $(addprefix --from ,$(sort $(wildcard docs/results/*.json))) --markdown docs/results.md

# A wheel with all kernels for Hopper compiled ahead, in dist. It needs no network and no GPU, but about a second of a core
# for each of thousands.
ARCHIVE := src/tilesmith/archives/sm_90a.archive
MAX_WHEEL_KB := 40000
wheel: $(VENV)/ready
	PYTHONPATH=src $(BIN)/python -m tilesmith build --arch sm_90a --output $(ARCHIVE)
	rm -rf build dist
	$(BIN)/python -m pip wheel . --quiet --no-deps --no-build-isolation --wheel-dir dist
	@rm -rf build
	@kb=$$(du -k --apparent-size dist/*.whl | cut -f1); echo "$$(ls dist/*.whl): $$kb KB"; \
	[ $$kb -le $(MAX_WHEEL_KB) ] || { rm dist/*.whl; echo "A wheel has at most $(MAX_WHEEL_KB) KB." >&2; exit 1; }

format: $(VENV)/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CUDA_SOURCES)

$(VENV)/ready: requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
