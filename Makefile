# Everything is done inside .venv; `make help` lists what can be done.
PYTHON ?= python3
SEED ?= 1
MINUTES ?= 30
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest --numprocesses 4 --dist worksteal
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all coverage check lint types imports format bench faults hostile images picture screenshots lock browser programs clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/installed ## Install the project and its development tools into .venv

$(VENV)/installed: pyproject.toml constraints.txt
	@echo "Installing into $(VENV): a minute or two."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --editable '.[dev,s3,server,simulator,trainer]'
	@touch $@

demo: install ## Start everything, train a small cell with FedCS and with FedLim, compare them
	$(BIN)/fedcs demo

test test-all coverage: export PATH := $(PATH):$(CURDIR)/$(VENV)/programs
test: install browser programs ## Run the tests, in a real browser too; the domain must be covered to the last branch
	$(PYTEST) -m "not long and not domain"
	$(PYTEST) -m domain tests/unit/domain tests/unit/protocol \
		--cov=services/domain --cov-report=term-missing:skip-covered --cov-fail-under=100

test-all: test images ## Run the long tests as well: about an hour more
	$(PYTEST) -m long
	$(BIN)/python -m tests.faults.chaos --seed $(SEED) --minutes 5
	$(BIN)/python -m tests.hostile.hostile_load --out $(VENV)/hostile.md

coverage: install programs ## See which lines of all packages the tests of units and of the service reach
	$(PYTEST) tests/integration tests/unit --cov --cov-report=term-missing:skip-covered --cov-fail-under=95

check: lint types imports test ## All that CI checks: style, types, imports, tests

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

imports: install
	$(BIN)/lint-imports

format: install ## Format the code and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install ## Run the benchmarks: ratios against peers measured in the same run
	$(BIN)/python -m benchmarks.selection
	$(BIN)/python -m benchmarks.optimality_gap
	$(BIN)/python -m benchmarks.report_ingest
	$(BIN)/python -m benchmarks.uploads
	$(BIN)/python -m benchmarks.round_opening
	$(BIN)/python -m benchmarks.aggregation
	$(BIN)/python -m benchmarks.poisoning
	$(BIN)/python -m benchmarks.simulation
	$(BIN)/python -m benchmarks.local_update
	$(BIN)/python -m benchmarks.dashboard
	$(BIN)/python -m benchmarks.scale_out

faults: install ## Chaos test: train for half an hour under random faults, check that nothing is lost (SEED=1 MINUTES=30)
	$(BIN)/python -m tests.faults.chaos --seed $(SEED) --minutes $(MINUTES) --report docs/results/faults.md

hostile: install ## Hostile load test: hostile uploads, fuzzed requests, honest clients beside them
	$(BIN)/python -m tests.hostile.hostile_load

images: install ## Check the container images and the alerts, without a container engine
	scripts/install_promtool.sh $(BIN)/promtool
	$(BIN)/promtool check config docker/prometheus/prometheus.yml
	$(BIN)/promtool test rules tests/docker/alerts_test.yml
	$(BIN)/python -m tests.docker.check_images

picture: install ## Draw the picture in the README again
	$(BIN)/fedcs plan docs/examples/cell.csv --png docs/images/round.png

screenshots: install browser ## Photograph the dashboard for the documentation
	$(BIN)/python scripts/take_screenshots.py docs/images

lock: ## Write constraints.txt anew, from the newest versions that pyproject.toml allows
	scripts/lock.sh $(PYTHON)

programs: install # what some tests drive beside the service
	@scripts/install_test_programs.sh $(VENV)

browser: # a browser for the tests; on Debian it is installed if there is none
	@scripts/install_chromium.sh

clean: ## Remove the virtual environment and every cache
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
