# `make run` and `make test` set everything up on a fresh machine; nothing else has to be typed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
OUT    := outputs

.PHONY: help install run test test-all test-oldest test-faults fuzz check format bench simulate clean

help:
	@echo "make run       install into $(VENV), then a first run: search, classify and compare in two languages"
	@echo "make test      install into $(VENV), then run the quick tests"
	@echo "make test-all  install into $(VENV), then run the slow tests too"
	@echo "make test-oldest  the core tests with constraints-oldest.txt (Python 3.11 or 3.12)"
	@echo "make test-faults  every command under disk errors, kills, power cuts; faults planted in storing and statistics (40 minutes)"
	@echo "make fuzz      files that nobody wrote, through the readers (7 minutes)"
	@echo "make check     lint, format and types"
	@echo "make bench     measure"
	@echo "make simulate  error rates of verdicts and intervals where the truth is known (20 minutes)"

# torch comes first and pinned: an open range would fetch several gigabytes of CUDA packages
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[multilingual]' --group dev
	touch $@

install: $(VENV)/.installed

run: install
	$(BIN)/python pipelines/first_look.py $(OUT)

# a worker for each core, each with one thread; those that are done take tests from the others
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

test: install
	$(PYTEST) -m "not network and not gpu and not slow"

test-all: install
	$(PYTEST) -m "not network and not gpu"

# the core tests with the floors of pyproject.toml; older versions of numpy have no wheels for 3.13
OLDEST := .venv-oldest
CORE := $(patsubst %,tests/test_%.py,corpus corpus_formats schema tokenization encoder packed \
    extraction jobs verification splits results search heads sklearn dependencies) \
    tests/test_finetune.py::test_predict_answers_as_for_any_run \
    tests/test_resume.py::test_a_damaged_shard_is_made_again

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --no-compile --no-cache-dir \
	    -c constraints-oldest.txt -e . \
	    datasets fugashi hypothesis pandas peft polars pytest pytest-xdist unidic-lite
	touch $@

test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest -n auto --dist worksteal \
	    -m "not network and not gpu and not slow" $(CORE)

test-faults: install
	$(BIN)/python -m tests.faults --workers 2
	$(BIN)/python -m tests.mutants
	$(BIN)/python -m tests.planted
	$(PYTEST) -q tests/test_hostile_files.py tests/test_damaged_shards.py tests/test_terminal.py

# atheris has no wheel for every Python and system: hypothesis alone then
fuzz: install
	-$(BIN)/python -m pip install --quiet --only-binary :all: --group fuzz
	$(BIN)/python -m tests.fuzz --seconds 30

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install
	$(BIN)/python -m pip install --quiet -c constraints.txt --group bench
	$(BIN)/python -m benchmarks.cpu --chart benchmarks/cpu.png
	$(BIN)/python -m benchmarks.finetuning

simulate: install
	$(BIN)/python -m benchmarks.simulate

clean:
	rm -rf $(OUT)
