# `make demo` and `make test` set up everything they need in .venv. A second run starts in seconds.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CUDA_SOURCES := $(shell find src tests/support -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -path '*/emulator/cxx/*.h')

.PHONY: demo test test-quick lint test-host test-sass test-gpu test-sanitizer test-upstream fuzz-gpu soak-gpu results browser docs wheel format
.PHONY: clean sdist check-dist test-package test-torch check-release hf-kernel

demo: $(VENV)/ready
	PYTHONPATH=src $(BIN)/python -m tilesmith demo

# At the same time: what lint takes of one core, tests would leave idle while they start and end.
test: $(VENV)/ready
	@$(MAKE) --no-print-directory --jobs 2 lint test-host

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

# What depends on torch, with another release of it, in an environment of its own: with CUDA's libraries, 5 GB in build.
TORCH := 2.11.0
OF_TORCH := op linear override compile upstream dynamic_shapes pack mixed explain programs warmup distributed emulator_emulate \
  kernelbench_write kernelbench_models
test-torch: export OMP_NUM_THREADS := 1
test-torch: export OPENBLAS_NUM_THREADS := 1
test-torch: build/torch-$(TORCH)/ready
	PYTHONPATH=src build/torch-$(TORCH)/bin/python -m pytest $(OF_TORCH:%=tests/host/test_%.py) \
	  -m "not sass" -n auto --dist loadgroup

# What the tests need is pinned, but for what that torch pins otherwise.
build/torch-$(TORCH)/ready: requirements-dev.txt
	$(PYTHON) -m venv build/torch-$(TORCH)
	grep -vE '^(torch|setuptools|nvidia-|ruff|mypy|clang-format)' $< > build/torch-$(TORCH)/requirements.txt
	build/torch-$(TORCH)/bin/python -m pip install --quiet --no-compile -r build/torch-$(TORCH)/requirements.txt \
	  torch==$(TORCH) 'nvidia-cuda-nvrtc>=13,<14'
	touch $@

test-gpu: $(VENV)/ready
	PYTHONPATH=src $(BIN)/python -m pytest tests -m gpu -n 4

test-sanitizer: $(VENV)/ready
	PYTHONPATH=src $(BIN)/python -m pytest tests -m sanitizer -n 4

# PyTorch's own samples of its operators and modules, under an override. A worker is the time of a core, not of the GPU.
test-upstream: export OMP_NUM_THREADS := 1
test-upstream: $(VENV)/ready
	PYTHONPATH=src $(BIN)/python -m pytest tests/upstream -m upstream -n 15 --disable-warnings

# 20,000 random products against float64; and 300 that must keep their bits on a busy GPU. ARGS="--seed 1" draws others.
fuzz-gpu soak-gpu: $(VENV)/ready
	PYTHONPATH=src:tests/support:tests/gpu $(BIN)/python scripts/$(subst -,_,$@).py $(ARGS)

# What the recorded runs say: tables, a page, and the README's chart. A new run:
# tilesmith bench --suite NAME --record docs/results/DATE-NAME.json
results: $(VENV)/ready
	PYTHONPATH=src $(BIN)/python scripts/speed_chart.py
	PYTHONPATH=src $(BIN)/python -m tilesmith bench $(addprefix --from ,$(sort $(wildcard docs/results/*.json))) \
		--markdown docs/results.md --html docs/assets/results.html

# The documentation as a site, in site. Its pages are files; only to search them takes a server.
docs: $(VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html; to search it: python3 -m http.server --directory site"

# A wheel with all kernels for Hopper compiled ahead, in dist. It needs no network and no GPU, but about a second of a core
# for each of thousands. KERNELS="--shape 4096x4096x4096" compiles those of the products alone that it names.
ARCHIVE := src/tilesmith/archives/sm_90a.archive
MAX_WHEEL_KB := 40000
KERNELS :=
wheel: $(VENV)/ready
	PYTHONPATH=src $(BIN)/python -m tilesmith build --arch sm_90a $(KERNELS) --output $(ARCHIVE)
	rm -rf build/lib build/bdist.* dist/*.whl
	$(BIN)/python -m pip wheel . --quiet --no-deps --no-build-isolation --wheel-dir dist
	@rm -rf build/lib build/bdist.*
	@kb=$$(du -k --apparent-size dist/*.whl | cut -f1); echo "$$(ls dist/*.whl): $$kb KB"; \
	[ $$kb -le $(MAX_WHEEL_KB) ] || { rm dist/*.whl; echo "A wheel has at most $(MAX_WHEEL_KB) KB." >&2; exit 1; }

# The sources as they are released, in dist.
sdist: $(VENV)/ready
	rm -f dist/*.tar.gz
	$(BIN)/python -c 'from setuptools.build_meta import build_sdist; build_sdist("dist")' > /dev/null
	@ls dist/*.tar.gz

# What is in dist, as an index of packages reads it. It brings two dozen packages, so it has an environment of its own.
TWINE := build/twine-7.0.0
DIST := dist
check-dist: $(TWINE)/bin/twine
	$< check --strict $(DIST)/*

$(TWINE)/bin/twine:
	$(PYTHON) -m venv $(TWINE)
	$(TWINE)/bin/python -m pip install --quiet $(subst -,==,$(notdir $(TWINE)))

# Tilesmith as a kernel of Hugging Face's hub, in build/hf-kernel.
hf-kernel: $(VENV)/ready
	PYTHONPATH=src $(BIN)/python scripts/write_hf_kernel.py

# Whether version and changelog agree; with TAG=v0.1.0, for that release.
check-release: $(VENV)/ready
	PYTHONPATH=src $(BIN)/python scripts/check_release.py $(TAG)

# Makes the wheel, with the kernels of one product, and the sdist, of a copy of the tree; checks both, and tries the wheel
# where nothing else is installed.
test-package: $(VENV)/ready
	$(BIN)/python scripts/try_package.py

format: $(VENV)/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CUDA_SOURCES)

$(VENV)/ready: requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile -r requirements-dev.txt
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
