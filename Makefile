# `make run` and `make test` set everything up on a fresh machine; nothing else has to be typed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
OUT    := outputs

.PHONY: help install run test test-all check format bench clean

help:
	@echo "make run       install into $(VENV), then compare classifiers on the corpora of data/"
	@echo "make test      install into $(VENV), then run the quick tests"
	@echo "make test-all  install into $(VENV), then run the slow tests too"
	@echo "make check     lint, format and types"
	@echo "make bench     measure"

# torch comes first and pinned: an open range would fetch several gigabytes of CUDA packages
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e . --group dev
	touch $@

install: $(VENV)/.installed

run: install
	$(BIN)/embedkit run pipelines/quickstart.toml --set out=../$(OUT)/quickstart || test $$? -eq 3
	$(BIN)/embedkit extract data/homonyms.tsv --label sense --keep word,start,end,language \
	    --layers all --words --tokens --out $(OUT)/homonyms
	$(BIN)/embedkit verify $(OUT)/quickstart/vectors --recompute 1
	$(BIN)/embedkit info $(OUT)/quickstart/vectors
	$(BIN)/python pipelines/first_look.py $(OUT)

# a worker for each core, each with one thread; those that are done take tests from the others
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

test: install
	$(PYTEST) -m "not network and not gpu and not slow"

test-all: install
	$(PYTEST) -m "not network and not gpu"

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

clean:
	rm -rf $(OUT)
