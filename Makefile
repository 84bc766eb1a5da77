# Everything is done inside .venv; `make help` lists what can be done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install demo test check lint types imports format bench picture lock browser clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/installed ## Install the project and its development tools into .venv

$(VENV)/installed: pyproject.toml constraints.txt
	@echo "Installing into $(VENV): a minute or two."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --editable '.[dev,trainer]'
	@touch $@

demo: install ## Start everything, train a small cell with FedCS and with FedLim, compare them
	$(BIN)/fedcs demo

test: install browser ## Run every test, in a real browser too; the domain must be covered to the last branch
	$(BIN)/pytest -n 3 --dist loadfile --cov --cov-report=
	$(BIN)/coverage report --include='services/domain/*' --fail-under=100 --show-missing
	$(BIN)/coverage report --skip-covered --fail-under=95

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
	$(BIN)/python -m benchmarks.simulation

picture: install ## Draw the picture in the README again
	$(BIN)/fedcs plan docs/examples/cell.csv --png docs/images/round.png

lock: ## Write constraints.txt anew, from the newest versions that pyproject.toml allows
	scripts/lock.sh $(PYTHON)

browser: # a browser for the tests; on Debian it is installed if there is none
	@scripts/install_chromium.sh

clean: ## Remove the virtual environment and every cache
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
