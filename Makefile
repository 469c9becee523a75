# Requires Python 3.11 or newer with pip, gcc and make. Everything else is installed into .venv.
PYTHON ?= python3
# Package index for torch, for example an index of CPU builds. If empty, pip uses its default index.
TORCH_INDEX_URL ?=
TORCH := torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
CODE := proto playground server export serve client testbed examples bench tests docs/pictures

# A second environment: the package without extras, with protobuf 7. The development environment has protobuf 6.
PROTOBUF7 := .venv-protobuf7

# A third environment: Ray Data with the client, for the test of examples/ray_data.py.
RAY := .venv-ray

# Tools that write the lock files and the lists of packages, with dependencies of their own.
LOCK_TOOLS := .venv-lock
LOCKS := server-cpu server-cuda export

# Packages of the Node.js example, axe-core for the playground, pyright, and the schemas of operators of Kubernetes.
# Without npm, their tests are skipped.
NODE_FOLDERS := examples/node tests/client/pyright tests/e2e/playground tests/deploy/operators
NODE_PACKAGES := $(NODE_FOLDERS:%=%/node_modules/.package-lock.json)

# The tests run several hundred Python processes, which would compile all modules again without their bytecode.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check test-all plain-tests check-tests soak cuda-double test-protobuf7 coverage lint lock sbom release proto bench bench-peers numerics gpu-check screenshots clean

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 16

$(VENV)/.installed: pyproject.toml requirements/dev.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headwaiter needs Python 3.11 or newer")'
	@echo 'Installing packages into $(VENV): about 3 minutes, and 2.2 GB of disk with a build of torch for CPUs.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) $(TORCH)
	$(BIN)/pip install --no-deps --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --no-deps -e .
	touch $@

demo: $(VENV)/.installed ## Export and serve a real model, and print the nearest neighbours of sentences
	$(BIN)/python -m examples.demo

$(PROTOBUF7)/.installed: pyproject.toml $(shell find proto playground client -name '*.py')
	$(PYTHON) -m venv $(PROTOBUF7)
	$(PROTOBUF7)/bin/pip install -q . 'protobuf>=7,<8'
	touch $@

$(RAY)/.installed: pyproject.toml requirements/ray.txt
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/pip install -q --no-deps --require-hashes -r requirements/ray.txt
	$(RAY)/bin/pip install -q --no-deps -e .
	touch $@

$(NODE_PACKAGES): %/node_modules/.package-lock.json: %/package-lock.json
	-if command -v npm > /dev/null; then npm ci --prefix $* --no-audit --no-fund --fetch-timeout=20000; fi

# Three tiers of tests: tests/README.md says which test belongs to which. In the first two, a part that uses one core
# runs beside the tests.
test: $(VENV)/.installed ## Run the linters, the plain tests and the smoke tests: 3 minutes on two slow cores
	$(MAKE) --jobs=2 lint plain-tests

# The processor time of two cores in three minutes.
PLAIN_TESTS_BUDGET_S := 360
plain-tests: $(VENV)/.installed
	$(BIN)/python -m tests.support.budget $(PLAIN_TESTS_BUDGET_S) \
		$(BIN)/pytest -n 2 --durations=20 -m 'not check and not exhaustive'

check: $(VENV)/.installed $(PROTOBUF7)/.installed $(NODE_PACKAGES) ## Run the tests of servers, exports and browsers: 12 minutes
	$(MAKE) --jobs=2 coverage test-protobuf7 check-tests

# `coverage` runs the tests of the client.
check-tests: $(VENV)/.installed $(NODE_PACKAGES)
	$(BIN)/pytest -n 3 -m 'check and not exhaustive' --ignore tests/client

test-all: $(VENV)/.installed $(RAY)/.installed $(NODE_PACKAGES) ## Run the exhaustive tests, and the tests of servers with front ends: 60 minutes
	$(BIN)/pytest -m exhaustive
	$(BIN)/pytest -n 3 -m '' --front-ends 2 tests/smoke tests/e2e tests/open_inference tests/server/http tests/soak

cuda-double: $(VENV)/.installed ## Compile the double of CUDA's libraries, and run all its tests
	$(BIN)/pytest -n 2 -m '' tests/cuda_double tests/bench/gpu

# Example of a longer load without the other parts: make soak SOAK='load --minutes 30'
soak: $(VENV)/.installed ## Run all long runs: load with faults, fuzzing, HTTP/2 abuse, sockets, folders
	$(BIN)/python -m tests.support.soak $(SOAK)

test-protobuf7: $(PROTOBUF7)/.installed ## Check the bare client with protobuf 7
	$(PROTOBUF7)/bin/python -m tests.support.protobuf7

coverage: $(VENV)/.installed ## Require 100 % line and branch coverage of the client
	$(BIN)/coverage run --branch --source=headwaiter_client -m pytest -n0 tests/client
	$(BIN)/coverage report --fail-under=100 --show-missing --skip-covered

lint: $(VENV)/.installed ## Check format, lint rules and types
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy

$(LOCK_TOOLS)/.installed: Makefile
	$(PYTHON) -m venv $(LOCK_TOOLS)
	$(LOCK_TOOLS)/bin/pip install -q uv==0.13.9 cyclonedx-bom==7.5.0
	touch $@

# Keeps the locked versions that still fit. Newer versions of all packages: make lock LOCK=--upgrade
lock: COMPILE = $(LOCK_TOOLS)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command 'make lock' $(LOCK)
# The images have the versions that the tests have.
lock: IMAGE = --constraints requirements/dev.txt
lock: $(LOCK_TOOLS)/.installed ## Write the locked versions of all packages, with hashes, into requirements/
	$(COMPILE) pyproject.toml requirements/torch.in --extra dev --excludes requirements/not-locked.txt \
		-o requirements/dev.txt
	$(COMPILE) pyproject.toml $(IMAGE) --extra server --extra cli --extra otel -o requirements/server-cpu.txt
	$(COMPILE) pyproject.toml $(IMAGE) --extra server --extra cli --extra otel --extra cuda \
		-o requirements/server-cuda.txt
	$(COMPILE) pyproject.toml requirements/torch.in $(IMAGE) --extra export --extra cli \
		--excludes requirements/not-locked.txt -o requirements/export.txt
	$(COMPILE) pyproject.toml requirements/ray.in $(IMAGE) --extra parquet -o requirements/ray.txt
	sed -n 's/^requires = \["\(.*\)"\]$$/\1/p' pyproject.toml | $(COMPILE) $(IMAGE) - -o requirements/build.txt

sbom: $(LOCK_TOOLS)/.installed ## List the packages of the images in CycloneDX, in build/sbom/
	mkdir -p build/sbom
	$(foreach lock,$(LOCKS),PYTHONWARNINGS=ignore $(LOCK_TOOLS)/bin/cyclonedx-py requirements requirements/$(lock).txt \
		--pyproject pyproject.toml --mc-type application --output-reproducible -o build/sbom/$(lock).cdx.json &&) true

release: sbom ## Write the wheel, the source archive, the lists of packages and the notes of a release, in build/release/
	$(LOCK_TOOLS)/bin/pip install -q --require-hashes -r requirements/build.txt
	PATH=$(abspath $(LOCK_TOOLS))/bin:$$PATH deploy/release.sh

proto: $(VENV)/.installed ## Generate Python code and docs/reference/grpc.md from the .proto files
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=proto --pyi_out=proto proto/headwaiter_proto/*.proto
	$(BIN)/python -m grpc_tools.protoc -I proto --grpc_python_out=proto proto/headwaiter_proto/encoder.proto
	$(BIN)/python proto/api_page.py > docs/reference/grpc.md

# Example of a short run of two parts: make bench BENCH='--quick throughput alone'
bench: $(VENV)/.installed ## Run the benchmarks: about 90 minutes on two idle cores
	$(BIN)/python -m bench $(BENCH)

# Example of a short run of two parts: make gpu-check GPU_CHECK='--quick graphs memory'
gpu-check: $(VENV)/.installed ## Check correctness and speed on a GPU, and what they decide: at most 8 minutes
	$(BIN)/pip install -q -e '.[cuda]'
	$(BIN)/python -m bench.gpu $(GPU_CHECK)

# Example of a short check of two peers: make bench-peers BENCH_PEERS='--quick triton mosec'
bench-peers: $(VENV)/.installed ## Compare with Triton, infinity, MLServer, mosec, LitServe, vLLM and llama.cpp: about an hour
	TORCH_INDEX_URL=$(TORCH_INDEX_URL) $(BIN)/python -m bench.peers $(BENCH_PEERS)

numerics: $(VENV)/.installed ## Measure the differences from PyTorch, and write docs/explanation/numerics.md
	$(BIN)/python -m bench.studies.numerics

screenshots: $(VENV)/.installed ## Take the pictures of the playground with Chromium
	$(BIN)/python -m docs.pictures.take_screenshots

clean: ## Delete the environments, the downloaded model and the bundles
	rm -rf $(VENV) $(PROTOBUF7) $(RAY) $(LOCK_TOOLS) .cache bundles build/peers $(NODE_FOLDERS:%=%/node_modules)
