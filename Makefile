# `make demo` and `make test` need Python 3.11 or newer with pip, gcc and make; the rest is installed into .venv.
PYTHON ?= python3
# Where torch comes from when the index at hand has none that suits, for example a CPU-only index.
TORCH_INDEX_URL ?=
TORCH := torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
CODE := proto server export client testbed examples bench tests

# The bare package with protobuf 7; the development environment has protobuf 6.
PROTOBUF7 := .venv-protobuf7

# What the example in Node.js needs; without npm, the test that runs it is skipped.
NODE_PACKAGES := examples/node/node_modules/.package-lock.json

.PHONY: demo test test-all test-protobuf7 coverage lint proto bench numerics gpu-check clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headwaiter needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) $(TORCH)
	$(BIN)/pip install -q -e '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m examples.demo

$(PROTOBUF7)/.installed: pyproject.toml $(shell find proto client -name '*.py')
	$(PYTHON) -m venv $(PROTOBUF7)
	$(PROTOBUF7)/bin/pip install -q . 'protobuf>=7,<8'
	touch $@

$(NODE_PACKAGES): examples/node/package-lock.json
	-if command -v npm > /dev/null; then npm ci --prefix examples/node --no-audit --no-fund --fetch-timeout=20000; fi

test: lint test-protobuf7 $(VENV)/.installed $(NODE_PACKAGES)
	$(BIN)/pytest

test-all: lint test-protobuf7 $(VENV)/.installed $(NODE_PACKAGES)
	$(BIN)/pytest -m ''

test-protobuf7: $(PROTOBUF7)/.installed
	$(PROTOBUF7)/bin/python -m tests.protobuf7

# Every line and branch of the client.
coverage: $(VENV)/.installed
	$(BIN)/coverage run --branch --source=headwaiter_client -m pytest -n0 tests/client
	$(BIN)/coverage report --fail-under=100 --show-missing --skip-covered

lint: $(VENV)/.installed
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy

proto: $(VENV)/.installed
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=proto --pyi_out=proto proto/headwaiter_proto/*.proto
	$(BIN)/python -m grpc_tools.protoc -I proto --grpc_python_out=proto proto/headwaiter_proto/encoder.proto
	$(BIN)/python proto/api_page.py > docs/api.md

# About an hour on two quiet cores; make bench BENCH='--quick throughput alone' runs some parts in haste.
bench: $(VENV)/.installed
	$(BIN)/python -m bench $(BENCH)

# On a card, meant to take less than 8 minutes; make gpu-check GPU_CHECK='--quick speed memory' runs some parts in haste.
gpu-check: $(VENV)/.installed
	$(if $(findstring --provider cpu,$(subst =, ,$(GPU_CHECK))),,$(BIN)/pip install -q -e '.[cuda]')
	$(BIN)/python -m bench.gpu $(GPU_CHECK)

numerics: $(VENV)/.installed
	$(BIN)/python -m bench.studies.numerics

clean:
	rm -rf $(VENV) $(PROTOBUF7) .cache bundles examples/node/node_modules
