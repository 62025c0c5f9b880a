# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check format benchmark views clean

demo: $(VENV)/demo
	$(BIN)/python examples/arithmetic_sign.py

test: $(VENV)/dev
	$(BIN)/python -m pytest

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

views: $(VENV)/demo
	for task in tree-lstm tagger parser molecule; do \
		$(BIN)/foldloom explain $$task --examples 12 --html docs/views/$$task.html > /dev/null || exit 1; done
	$(BIN)/foldloom profile tree-lstm --examples 64 --picture docs/views/loom.svg

$(VENV)/demo $(VENV)/dev: $(VENV)/%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$*]"
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
