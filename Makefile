# The commands of this repository. `make demo` and `make test` need nothing but Python 3.11 or newer.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PYTEST := $(BIN)/python -m pytest -q --durations=15 $(PYTEST_FLAGS)
# Each of these runs in a pytest process of its own: they start clusters and command lines of their own, and two
# Ray clusters in one process tree would find each other.
APART := tests/multinode tests/cli
# The GPU kernels, in Triton's interpreter: in a folder of their own, since transformers would take mamba_ssm for itself.
KERNELS := build/kernels
# Not in constraints.txt: torch for CUDA brings the Triton that it was built with.
TRITON := triton==3.9.0
INTERPRETED := tests/models/fused
# --upgrade: without it pip leaves what a folder already has.
INTO_KERNELS := $(BIN)/python -m pip install -c constraints.txt --upgrade --no-deps --target

.DEFAULT_GOAL := help
.PHONY: help demo test slow kernels-cpu kernels-test lint types format venv cluster-code clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

demo: venv  ## install, then run the noise_scale sweep (further flags: make demo ARGS="--seeds 3")
	$(BIN)/python -m sweeps.run noise_scale $(ARGS)

test: venv  ## install, then run the default tests
	$(PYTEST) tests $(addprefix --ignore=,$(APART))
	set -e; for suite in $(APART); do $(PYTEST) $$suite; done

slow: venv  ## the slow tests: each suite that starts processes of its own by itself, one after the other
	$(PYTEST) tests $(addprefix --ignore=,$(APART) $(INTERPRETED)) -m "slow and not gpu"
	set -e; for suite in $(APART); do $(PYTEST) $$suite -m "slow and not gpu"; done

kernels-cpu: $(KERNELS)/.installed  ## install the GPU kernels on a machine without a GPU, into build/kernels

# mamba-ssm is built without its CUDA extension; both variables, or its build looks for a CUDA that is not there.
$(KERNELS)/.installed: constraints.txt Makefile | venv
	rm -rf $(KERNELS) $(KERNELS)-build
	$(INTO_KERNELS) $(KERNELS)-build setuptools wheel ninja packaging
	PYTHONPATH=$(KERNELS)-build MAMBA_FORCE_BUILD=TRUE MAMBA_SKIP_CUDA_BUILD=TRUE \
	  $(INTO_KERNELS) $(KERNELS) --no-build-isolation mamba-ssm
	$(INTO_KERNELS) $(KERNELS) $(TRITON) fla-core flash-linear-attention
	touch $@

kernels-test: kernels-cpu  ## the fused scans against loops over time, in Triton's interpreter on the CPU
	TRITON_INTERPRET=1 PYTHONPATH=$(KERNELS) $(PYTEST) $(INTERPRETED) -m slow

lint: venv  ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv  ## mypy
	$(BIN)/mypy

format: venv  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

venv: $(STAMP)  ## make .venv and install; again only when pyproject.toml or constraints.txt change

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else 1)' || \
	  { echo "$(PYTHON) is older than Python 3.11; write make PYTHON=python3.11" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	touch $@

cluster-code:  ## unpack the last commit into build/cluster, which cluster.yaml sends to the machines
	rm -rf build/cluster
	mkdir -p build/cluster
	git archive --format=tar HEAD | tar -x -C build/cluster
	@test -z "$$(git status --porcelain)" || echo "note: uncommitted changes stay here, the cluster gets the last commit"

clean:  ## remove what can be made again; results (runs/, mlflow.db, mlartifacts/) stay
	rm -rf .venv build .pytest_cache .hypothesis .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -not -path './runs/*' -prune -exec rm -rf {} +
