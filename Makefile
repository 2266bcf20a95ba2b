# croma-bundle: thin targets over the command line, docker compose and the tools' venvs. `make help` explains them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV ?= .venv
TEST_VENV ?= .venv-test
FAMILIES_VENV ?= .venv-families
export CROMA_VOLUME ?= ./volume
export PYTHONNOUSERSITE := 1

TILESET ?= phantom
FAMILY ?= classical
ENCODERS ?=
DEVICE ?= auto
WORKERS ?=
BATCH ?=
FORCE ?=
PROTOCOL ?= median-k
BENCHMARK ?=
CONFOUNDER ?=
M ?=
ITERATIONS ?=
SEED ?=
THREADS ?=
RUNTIME ?= auto
RESULTS ?= results/phantom
NETWORK ?=
REGISTRY ?=
IMAGES ?=
FILE ?= croma-bundle-images.tar

BUNDLE := $(VENV)/bin/croma-bundle
TESTS := $(TEST_VENV)/bin/python -m pytest
workers = $(if $(WORKERS),--workers $(WORKERS))
only = $(if $(IMAGES),--images $(IMAGES))
encoders = $(if $(ENCODERS),--encoders $(ENCODERS))
launch = $(BUNDLE) launch --runtime $(RUNTIME)

##@ Start here
.PHONY: help demo test
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z][a-z-]*:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; echo "  Variables: TILESET FAMILY ENCODERS=A,B DEVICE WORKERS BATCH FORCE=1 PROTOCOL BENCHMARK=A,B CONFOUNDER=A,B M=5 RUNTIME=auto|docker|venv|apptainer"
	@echo "             CROMA_VOLUME=$(CROMA_VOLUME)  PYTHON=$(PYTHON)"

demo: $(BUNDLE) ## Phantom tiles → classical encoders → scores → compare with results/phantom (no Docker, GPU or download)
	$(BUNDLE) tiles fetch phantom $(workers)
	$(BUNDLE) embed --family classical --tileset phantom $(workers)
	$(BUNDLE) score --benchmark phantom --protocol median-k
	@$(BUNDLE) verify tables "$(CROMA_VOLUME)/metrics/median-k/phantom" "$(RESULTS)"

test: $(TEST_VENV)/.ready ## Everything that needs neither an engine nor torch
	$(TESTS) -n auto --dist loadfile -m "not containers and not encoders" $(ARGS)

##@ The steps, each in its image, its venv or an apptainer container (RUNTIME)
.PHONY: tiles weights embed score probe verify smoke parity status doctor
tiles: $(BUNDLE) ## Put a declared tileset on the volume (TILESET=phantom)
	$(launch) tiles $(TILESET) $(workers)

weights: $(BUNDLE) ## Fetch and verify the pinned checkpoints of a family (FAMILY=waiv)
	$(launch) run weights --family $(FAMILY) $(encoders)

embed: $(BUNDLE) ## Fetch the tiles and weights that are missing, then embed, offline (FAMILY=classical TILESET=phantom)
	$(launch) embed --family $(FAMILY) --tileset $(TILESET) --device $(DEVICE) $(encoders) $(workers) \
	  $(if $(BATCH),--batch $(BATCH)) $(if $(filter 1,$(FORCE)),--force)

score: $(BUNDLE) ## Score every embedded benchmark (PROTOCOL=median-k)
	$(launch) run score --protocol $(PROTOCOL) $(if $(BENCHMARK),--benchmark $(BENCHMARK)) $(encoders) \
	  $(if $(CONFOUNDER),--confounder $(CONFOUNDER)) $(if $(M),--m $(M))

probe: $(BUNDLE) ## Sweep confounder-biased probes over every embedded tileset with a schedule: APD and nIPD (ITERATIONS SEED THREADS)
	$(launch) run probe $(if $(BENCHMARK),--benchmark $(BENCHMARK)) $(encoders) $(if $(ITERATIONS),--iterations $(ITERATIONS)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(THREADS),--threads $(THREADS))

verify: $(BUNDLE) ## Re-hash every artifact, compare the images with their lock, and what is scored with the published figures
	$(BUNDLE) verify artifacts
	$(BUNDLE) verify images
	$(BUNDLE) verify published --if-scored

smoke: $(BUNDLE) ## Real weights (FAMILY=waiv; needs access) over nine generated tiles, twice; the vectors go to CROMA_VOLUME/parity
	$(launch) smoke --family $(FAMILY) --device $(DEVICE) $(encoders)

parity: $(BUNDLE) ## Compare somebody else's golden vectors with those of `make smoke` here (FILE=their/Encoder.json)
	@[ "$(origin FILE)" != file ] || { echo "error: make parity: FILE=their/Encoder.json names the golden vectors to compare with; make smoke writes such files" >&2; exit 2; }
	$(BUNDLE) parity $(FILE)

status: $(BUNDLE) ## What is declared, embedded, missing
	$(BUNDLE) status

doctor: $(BUNDLE) ## What this machine lacks, before a long run (FAMILY=waiv TILESET=… RUNTIME=… NETWORK=1)
	$(BUNDLE) doctor --runtime $(RUNTIME) --family $(FAMILY) --tileset $(TILESET) \
	  $(if $(filter 1,$(NETWORK)),--network)

##@ Images
.PHONY: images test-containers
comma := ,
built = $(or $(subst $(comma), ,$(IMAGES)),torch score tiles shared waiv rudolfv2)
services = $(foreach image,$(built),$(if $(filter shared waiv rudolfv2,$(image)),embed-$(image),$(image)))
compose_build = docker compose -f compose.yaml --profile torch
lock_hash = CROMA_$(shell tr a-z A-Z <<<$(1))_LOCK_SHA256=$(firstword $(shell sha256sum images/$(1)/$(2).lock))
images: engine ## Build the images (IMAGES=score,tiles for some; BASE_IMAGE=…; TORCH=blackwell; CA_BUNDLE=… PIP_CONF=…, docs/hospital-it.md)
	$(if $(BASE_IMAGE),BASE_IMAGE="$(BASE_IMAGE)" $(if $(findstring @,$(BASE_IMAGE)),BASE_DIGEST=$(lastword $(subst @, ,$(BASE_IMAGE))))) \
	  $(if $(CA_BUNDLE),CROMA_CA_BUNDLE="$(CA_BUNDLE)") \
	  $(if $(PIP_CONF),CROMA_PIP_CONF="$(PIP_CONF)") CROMA_GIT_COMMIT="$(commit)" $(call lock_hash,torch,$(or $(TORCH),requirements)) \
	  $(foreach image,score tiles shared waiv rudolfv2,$(call lock_hash,$(image),requirements)) $(compose_build) build $(services)
	@docker image inspect --format '{{index .RepoTags 0}} {{.Size}} {{.Id}}' $$($(compose_build) config --images $(services)) | \
	  awk '{printf "%-40s %7.1f MB  %s\n", $$1, $$2 / 1e6, $$3}'
	@[ ! -e compose.override.yaml ] || echo "compose.override.yaml still names the published images; remove it to run these" >&2

.PHONY: push pull save load
push: $(BUNDLE) ## Push the images to REGISTRY=… and record them, by digest, in manifests/images.lock.toml (IMAGES=score,tiles)
	@[ -n "$(REGISTRY)" ] || { echo "error: make push: REGISTRY=… says where to" >&2; exit 2; }
	$(BUNDLE) images push "$(REGISTRY)" $(only)

pull: $(BUNDLE) ## Pull the published images by digest; compose then runs exactly these
	$(BUNDLE) images pull $(only)

save: $(BUNDLE) ## Write the images to FILE=croma-bundle-images.tar, for a machine without a registry
	$(BUNDLE) images save "$(FILE)" $(only)

load: $(BUNDLE) ## Load FILE=croma-bundle-images.tar
	$(BUNDLE) images load "$(FILE)"

.PHONY: test-encoders
families := $(if $(filter classical,$(FAMILY)),shared waiv rudolfv2,$(FAMILY))
test-encoders: $(foreach family,$(families),$(FAMILIES_VENV)/$(family)/.ready) ## The tests that need torch, on each family's locks (FAMILY=shared for one)
	@for family in $(families); do echo "tests on the libraries of the family $$family"; \
	  PYTHONPATH="$(abspath $(FAMILIES_VENV))/$$family:$(CURDIR)/src" OMP_NUM_THREADS=1 \
	    $(FAMILIES_VENV)/torch/bin/python -m pytest -n auto --dist loadfile -m encoders $(ARGS) \
	    $$(grep -rl --include='test_*.py' 'mark\.encoders' tests); \
	done

test-containers: engine $(TEST_VENV)/.ready ## The tests that need a Docker engine: images, compose
	$(TESTS) -m containers tests/containers $(ARGS)

##@ Development
.PHONY: bench
bench: $(TEST_VENV)/.ready ## Time the scorer beside croma and the matrix product (about 15 minutes; ARGS="tcga --no-croma")
	$(TEST_VENV)/bin/python benchmarks/score.py $(ARGS)

.PHONY: bench-tiles
bench-tiles: $(TEST_VENV)/.ready ## Time reading tiles from parquet beside PNG files, in order and at random (ARGS="--tiles 2000")
	$(TEST_VENV)/bin/python benchmarks/tiles.py $(ARGS)

.PHONY: bench-probe
bench-probe: $(TEST_VENV)/.ready ## Time the probe sweep beside croma, on Camelyon's geometry (ARGS="--replicates 2")
	$(TEST_VENV)/bin/python benchmarks/probe.py $(ARGS)

.PHONY: bench-embed
bench_family = $(or $(filter waiv rudolfv2,$(FAMILY)),shared)
bench-embed: $(FAMILIES_VENV)/$(bench_family)/.ready ## Time the embed loop beside the bare forward pass and a DataLoader (ARGS=--help; the first run installs torch)
	PYTHONPATH="$(abspath $(FAMILIES_VENV))/$(bench_family):$(CURDIR)/src" $(FAMILIES_VENV)/torch/bin/python benchmarks/embed.py $(ARGS)

.PHONY: lint format docs lock lock-weights lock-tilesets results clean engine
lint: $(TEST_VENV)/.ready ## ruff and mypy
	$(TEST_VENV)/bin/ruff check .
	$(TEST_VENV)/bin/ruff format --check .
	$(TEST_VENV)/bin/mypy

format: $(TEST_VENV)/.ready ## Format the code
	$(TEST_VENV)/bin/ruff format .
	$(TEST_VENV)/bin/ruff check --fix .

LOCK = uv pip compile -q --generate-hashes --universal --python-version 3.11 --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'
docs: $(TEST_VENV)/.ready ## Renew the generated documentation
	$(TEST_VENV)/bin/python docs/generate.py

# The order matters: constraints (-c in the .in files) tie each lock to earlier ones. A family's lock is what it adds to torch.
lock-weights: $(BUNDLE) ## Ask the hub once for the commits and hashes that the encoders' entries leave open (ENCODERS=A,B)
	$(BUNDLE) lock-weights $(encoders)

lock: ## Renew the locks (needs uv); UPGRADE=1 takes newer releases
	@for name in requirements/tools requirements/test images/torch/requirements images/torch/blackwell images/wheel/requirements \
	  images/score/requirements images/tiles/requirements images/shared/requirements images/waiv/requirements images/rudolfv2/requirements \
	  requirements/encoders-test; do \
	  echo "$$name.lock"; of_torch=(); \
	  ! grep -q '^-c ../torch/' "$$name.in" || of_torch=($$(sed -nE 's/^([a-z0-9._-]+)==.*/--no-emit-package \1/p' images/torch/requirements.lock | sort -u)); \
	  $(LOCK) $(if $(UPGRADE),--upgrade) "$${of_torch[@]}" "$$name.in" -o "$$name.lock"; \
	done

lock-tilesets: $(BUNDLE) ## Fetch the metadata tables whose sha256 is not known, once, and write manifests/tilesets.lock.toml
	$(BUNDLE) lock-tilesets

results: $(BUNDLE) ## Renew results/phantom from the volume's scores of the phantom (say why in the commit)
	@test -s "$(CROMA_VOLUME)/metrics/median-k/phantom/run.json" || { echo "error: the phantom is not scored: make demo" >&2; exit 3; }
	rm -f "$(RESULTS)"/*.csv "$(RESULTS)/run.json"
	cp "$(CROMA_VOLUME)"/metrics/median-k/phantom/{*.csv,run.json} "$(RESULTS)/"

clean: ## Remove the venvs and caches, not the volume
	rm -rf .venv .venv-test .venv-families .venv-shared .venv-waiv .venv-rudolfv2 .cache .mypy_cache .ruff_cache .pytest_cache build dist

# A venv from its lock: every wheel by hash, then this package from the checkout, with nothing else fetched for it.
define venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is $$($(PYTHON) --version 2>&1); Python 3.11 or newer is needed: make PYTHON=python3.12 …" >&2; exit 4; }
	@[ ! -e "$(1)" ] || [ -e "$(1)/pyvenv.cfg" ] || [ -z "$$(ls -A "$(1)")" ] || \
	  { echo "error: $(1) exists and is no virtual environment; it would be erased. Name another folder: make VENV=…" >&2; exit 2; }
	@$(PYTHON) -m venv --clear $(1) || { echo "error: $(PYTHON) has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 4; }
	@echo "installing $(2) into $(1)"
	@$(1)/bin/python -m pip install --disable-pip-version-check -q --require-hashes --only-binary :all: -r $(2)
	@$(1)/bin/python -m pip install --disable-pip-version-check -q --no-deps --no-index --no-build-isolation -e .
endef

# A venv whose Python is gone, or that was moved with its checkout, runs nothing: it is made again.
broken := $(if $(wildcard $(VENV)/pyvenv.cfg),$(shell $(BUNDLE) --version >/dev/null 2>&1 || echo broken))
.PHONY: broken
$(BUNDLE): requirements/tools.lock pyproject.toml $(broken)
	$(call venv,$(VENV),requirements/tools.lock)
	@touch $@

$(TEST_VENV)/.ready: requirements/test.lock pyproject.toml
	$(call venv,$(TEST_VENV),requirements/test.lock)
	@touch $@

# As in the images: torch once, and what each family adds to it; pytest stands beside, in the families' own versions.
pip_lock = -m pip install --disable-pip-version-check -q --require-hashes --only-binary :all:
$(FAMILIES_VENV)/torch/.ready: images/torch/requirements.lock
	@$(PYTHON) -m venv --clear $(@D)
	@echo "installing $< into $(@D)"
	@$(@D)/bin/python $(pip_lock) -r $<
	@touch $@

$(FAMILIES_VENV)/%/.ready: images/%/requirements.lock requirements/encoders-test.lock $(FAMILIES_VENV)/torch/.ready
	@rm -rf $(@D)
	@echo "installing $< into $(@D)"
	@$(FAMILIES_VENV)/torch/bin/python $(pip_lock) --no-deps --target $(@D) -r $< -r requirements/encoders-test.lock
	@touch $@

# Stops with the reason where docker or compose is missing, or no engine answers.
engine:
	@docker compose version >/dev/null 2>&1 || { printf '%s\n' 'error: docker compose: it is not installed' \
	  '  wanted   a Docker engine, 20.10 or newer, with the compose v2 plugin' '  docs/hospital-it.md' >&2; exit 4; }
	@docker info >/dev/null 2>&1 || { printf '%s\n' 'error: docker: no engine answers' \
	  "  found    $$(docker version --format '{{.Server.Version}}' 2>&1 | tail -n 1)" \
	  '  Start it (systemctl start docker), or join the group docker. Scoring works without: make score RUNTIME=venv' >&2; exit 4; }

# What an image says it was built from; a checkout with changes says so.
commit = $(or $(CROMA_GIT_COMMIT),$(shell git describe --match= --always --abbrev=40 --dirty 2>/dev/null))
