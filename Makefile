# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard foldloom/*/*.[ch])
TRIALS := .venv-trials

.PHONY: demo test test-without-c test-builds trials check warnings sanitize wheel format benchmark bench-readme views docs clean

demo: $(VENV)/demo
	$(BIN)/python examples/hidden_operators.py

test: $(VENV)/dev $(VENV)/browser
	$(BIN)/python -m pytest

# The same, with Python in the place of C. Tests of the compiled parts skip.
test-without-c: $(VENV)/dev $(VENV)/browser
	FOLDLOOM_NO_C=1 $(BIN)/python -m pytest

# All other ways to build: before a release, and after changing C.
test-builds: test-without-c sanitize wheel

# Libraries of others under the law, in an environment of their own.
trials: $(TRIALS)/trials
	$(TRIALS)/bin/python -m pytest -n 0 tests/third_party

check: $(VENV)/dev warnings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)

# C without any warning. Where there is no compiler, Foldloom runs without C, and there is nothing to check.
warnings: $(VENV)/dev
	if command -v $(CC) > /dev/null; then include=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('include'))"); \
		for source in $(filter %.c,$(NATIVE)); do \
			$(CC) -c -o /dev/null -fPIC -O2 -Wall -Wextra -Werror -I$$include $$source || exit 1; done; \
		else echo "There is no $(CC): warnings of the compiler were not looked for"; fi

# The tests of what is in C, with C that stops at memory errors and undefined behaviour. Needs gcc. Fibers copy stacks, which
# AddressSanitizer would take for errors, so it leaves the stack alone. Nor does it see Python's own allocator, which is switched off.
SANITIZED := build/sanitized
sanitize: $(VENV)/dev
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	cp -r foldloom tests benchmarks examples pyproject.toml README.md $(SANITIZED)
	find $(SANITIZED) -name "*.so" -delete
	cd $(SANITIZED) && CC=gcc CFLAGS="-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined --param asan-stack=0" \
		$(abspath $(BIN))/python -c "from setuptools import setup; setup()" -q build_ext --inplace
	cd $(SANITIZED) && LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc PYTHONPATH=. $(abspath $(BIN))/python -m pytest \
		tests/planning tests/tracing/recording tests/tracing/flushing tests/tracing/mutation tests/tracing/values \
		tests/tracing/test_fast_path.py tests/tracing/test_exceptions.py tests/law/test_cases.py

# A wheel, installed and tried in a clean environment, where Python does not see the sources: without torch, then with it.
WHEEL := build/wheel
wheel: $(VENV)/dev
	rm -rf $(WHEEL) build/lib* build/bdist* && mkdir -p $(WHEEL)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir $(WHEEL) .
	$(PYTHON) -m venv $(WHEEL)/clean
	$(WHEEL)/clean/bin/python -I -m pip install --quiet --constraint constraints.txt $(WHEEL)/*.whl
	$(WHEEL)/clean/bin/python -I -c "import foldloom.runtime, sys; assert 'torch' not in sys.modules"
	$(WHEEL)/clean/bin/python -I -m pip install --quiet --constraint constraints.txt "$$(ls $(WHEEL)/*.whl)[torch]"
	$(WHEEL)/clean/bin/python -I tests/try_wheel.py

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(NATIVE)

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

# The site, in build/site. A warning is an error. Makes a page of each program of the gallery by running it.
docs: $(VENV)/docs
	$(BIN)/python -m docs.site

$(VENV)/bench $(VENV)/demo $(VENV)/dev $(VENV)/docs: $(VENV)/%: pyproject.toml constraints.txt $(NATIVE)
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
