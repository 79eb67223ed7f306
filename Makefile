# `make run` and `make test` set everything up on a fresh machine; nothing else has to be typed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
OUT    := outputs

.PHONY: help install wheel docs run quick test test-slow test-avx2 test-oldest test-gpu-image crashes check format bench simulate clean

help:
	@echo "make run       install into $(VENV), then a first run: search, classify and compare in two languages"
	@echo "make quick     a core of the quick tests, from reading a corpus to comparing runs (90 seconds)"
	@echo "make test      install into $(VENV), then run the quick tests (4 minutes on two cores)"
	@echo "make wheel     build dist/embedkit-*.whl, and print the line that installs it"
	@echo "make docs      build the documentation as a site in site/"
	@echo "make test-slow  the tests that take long: README, workflows, kills, every instruction set"
	@echo "make test-avx2  the equality of vectors with the instructions of an older processor"
	@echo "make test-oldest  the core tests with constraints-oldest.txt (Python 3.11 or 3.12)"
	@echo "make test-gpu-image  the encoder on CPU with the versions of a CUDA image (5 GB, Python 3.12)"
	@echo "make crashes   an error, a kill and a power cut at every write of extract, train, finetune, index;"
	@echo "               pairs of commands at once; flipped bits"
	@echo "make check     lint, format and types"
	@echo "make bench     measure"
	@echo "make simulate  error rates of verdicts and intervals where the truth is known (5 minutes)"

# torch comes first and pinned: an open range would fetch several gigabytes of CUDA packages
$(VENV)/.user: pyproject.toml constraints.txt
	@echo "installing into $(VENV): a few minutes, mostly torch"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet -c constraints.txt torch
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[multilingual]'
	@touch $@

# what developers need besides
$(VENV)/.installed: $(VENV)/.user
	$(BIN)/python -m pip install --quiet -c constraints.txt --group dev
	touch $@

install: $(VENV)/.installed

# needs no compiler and nothing installed but pip
wheel:
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .
	@echo "pip install --extra-index-url https://download.pytorch.org/whl/cpu $$(ls dist/embedkit-*.whl)"

run: $(VENV)/.user
	@$(BIN)/python pipelines/first_look.py $(OUT)

# a worker more than there are cores, each with one thread; those that are done take tests from the
# others
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

# files of tests by their folder and topic
tests = $(foreach name,$(1),tests/$(subst ./,,$(dir $(name)))test_$(notdir $(name)).py)

# some of each layer: what is read, encoded, stored, damaged, split, trained, scored and told
QUICK := $(call tests,properties/architecture properties/mistakes arguments storage \
    corpus/corpus corpus/corpus_values encoding/tokenization encoding/encoder encoding/packed \
    dataset/extraction dataset/format dataset/damage dataset/resume search/search \
    runs/splits runs/scores runs/runs finetuning/finetune_methods comparison/compare cli/cli)

quick: install
	$(PYTEST) -m "not gpu and not slow" $(QUICK)

test: install
	$(PYTEST) -m "not gpu and not slow"

test-slow: install
	$(PYTEST) -m "slow and not gpu"

# vectors are those of the plain forward; exact sums, and the same bits in any company, of int8
ENGINE := $(call tests,encoding/equality encoding/int8)

test-avx2: install
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
	    $(PYTEST) -m "not gpu and not slow" $(ENGINE)

# the core tests with the floors of pyproject.toml; older versions of numpy have no wheels for 3.13
OLDEST := .venv-oldest
CORE := $(call tests,corpus/corpus corpus/corpus_formats encoding/tokenization encoding/encoder \
    encoding/packed dataset/extraction runs/splits runs/results search/search finetuning/heads \
    sklearn install) \
    tests/finetuning/test_finetune.py::test_settings_make_runs_that_predict \
    tests/dataset/test_resume.py::test_a_damaged_shard_is_made_again

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --no-compile --no-cache-dir \
	    -c constraints-oldest.txt -e . \
	    datasets fugashi hypothesis odfpy openpyxl pandas peft polars pytest pytest-xdist \
	    python-calamine unidic-lite
	touch $@

test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest -n auto --dist worksteal \
	    -m "not gpu and not slow" $(CORE)

# what a machine with a GPU was seen to have; no GPU is needed
IMAGE := .venv-gpu-image
PYTHON312 ?= python3.12

$(IMAGE)/.installed: constraints-gpu-image.txt
	$(PYTHON312) -m venv $(IMAGE)
	$(IMAGE)/bin/python -m pip install --quiet --no-compile --no-cache-dir \
	    -c constraints-gpu-image.txt -r constraints-gpu-image.txt
	touch $@

test-gpu-image: $(IMAGE)/.installed
	PYTHONPATH=. $(IMAGE)/bin/python -m pytest -p no:cacheprovider -m "not slow" \
	    $(call tests,encoding/fake_cuda encoding/gpu encoding/packed encoding/encoder)
	PYTHONPATH=. $(IMAGE)/bin/python -m benchmarks.gpu --device cpu --quick

# two at a time
crashes: install
	printf '%s\n' extract 'extract --overwrite' 'extract --reuse' train finetune index | \
	    xargs -P 2 -I {} $(BIN)/python -m tests.durable {}
	$(BIN)/python -m tests.races --times 20
	$(BIN)/python -m tests.flips --count 1000

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# the documentation as a site; nothing is fetched once the packages are there
SITE := .venv-docs

$(SITE)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(SITE)/bin/python -m pip install --quiet -c constraints.txt torch
	$(SITE)/bin/python -m pip install --quiet -c constraints.txt -e . --group docs
	touch $@

docs: $(SITE)/.installed
	$(SITE)/bin/mkdocs build --strict

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install
	$(BIN)/python -m pip install --quiet -c constraints.txt --group bench
	$(BIN)/python -m benchmarks.peers --chart benchmarks/cpu.png
	$(BIN)/python -m benchmarks.cpu
	$(BIN)/python -m benchmarks.finetuning

simulate: install
	$(BIN)/python -m benchmarks.simulate

clean:
	rm -rf $(OUT) site
