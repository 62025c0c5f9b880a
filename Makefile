# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := foldloom/planning/_planning.c foldloom/tracing/_fast_path.c foldloom/tracing/_frames.c
TRIALS := .venv-trials

.PHONY: demo test test-without-c trials check format benchmark bench-readme views clean

demo: $(VENV)/demo
	$(BIN)/python examples/hidden_operators.py

test: $(VENV)/dev $(VENV)/browser
	$(BIN)/python -m pytest

# The same, with Python in the place of C. Tests of the compiled parts skip.
test-without-c: $(VENV)/dev $(VENV)/browser
	FOLDLOOM_NO_C=1 $(BIN)/python -m pytest

# Libraries of others under the law, in an environment of their own.
trials: $(TRIALS)/trials
	$(TRIALS)/bin/python -m pytest -n 0 tests/third_party

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmark: $(VENV)/demo
	$(BIN)/python -m benchmarks tree-lstm

# What Foldloom and its peers do on this machine, into the README and docs/peers.md. Takes about an hour; nothing else should run.
# Cells are compiled by g++.
bench-readme: $(VENV)/bench
	$(BIN)/python -m benchmarks peers --goals --rounds 5 --json benchmarks/results/peers-goals.json
	$(BIN)/python -m benchmarks peers --shown --rounds 5 --json benchmarks/results/peers.json
	$(BIN)/python -m benchmarks cost-per-node --json benchmarks/results/cost-per-node.json
	$(BIN)/python -m benchmarks peers-readme

views: $(VENV)/demo
	for task in sentiment tagging parsing molecules; do \
		$(BIN)/foldloom explain $$task --examples 12 --html docs/views/$$task.html > /dev/null || exit 1; done
	$(BIN)/foldloom profile sentiment --examples 64 --picture docs/views/loom.svg

$(VENV)/bench $(VENV)/demo $(VENV)/dev: $(VENV)/%: pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$*]"
	touch $@

$(TRIALS)/trials: pyproject.toml constraints.txt $(NATIVE)
	test -x $(TRIALS)/bin/python || $(PYTHON) -m venv $(TRIALS)
	$(TRIALS)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[trials]"
	touch $@

# The page of fl.show is tried in Debian's Chromium. Where it can be had by asking, it is; elsewhere those tests say so and skip.
$(VENV)/browser: $(VENV)/dev
	if ! command -v chromedriver > /dev/null && command -v apt-get > /dev/null && test "$$(id -u)" = 0; then \
		(apt-get update && apt-get install --yes --no-install-recommends chromium chromium-driver) > /dev/null \
		|| echo "Chromium could not be installed: tests of pages will skip"; fi
	touch $@

clean:
	rm -rf $(VENV) $(TRIALS) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
