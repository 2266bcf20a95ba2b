# croma-bundle: thin targets over the command line, docker compose and the tools' venvs. `make help` explains them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV ?= .venv
TEST_VENV ?= .venv-test
export CROMA_VOLUME ?= ./volume
export PYTHONNOUSERSITE := 1

TILESET ?= phantom
FAMILY ?= classical
ENCODERS ?=
DEVICE ?= auto
WORKERS ?=
FORCE ?=
PROTOCOL ?= median-k
BENCHMARK ?=
CONFOUNDER ?=
M ?=
RUNTIME ?= auto
RESULTS ?= results/phantom

BUNDLE := $(VENV)/bin/croma-bundle
TESTS := $(TEST_VENV)/bin/python -m pytest
workers = $(if $(WORKERS),--workers $(WORKERS))

##@ Start here
.PHONY: help demo test
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z][a-z-]*:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; echo "  Variables: TILESET FAMILY ENCODERS=A,B DEVICE WORKERS FORCE=1 PROTOCOL BENCHMARK=A,B CONFOUNDER=A,B M=5 RUNTIME=auto|docker|venv"
	@echo "             CROMA_VOLUME=$(CROMA_VOLUME)  PYTHON=$(PYTHON)"

demo: $(BUNDLE) ## Phantom tiles → classical encoders → scores → compare with results/phantom (no Docker, GPU or download)
	$(BUNDLE) tiles fetch phantom $(workers)
	$(BUNDLE) embed --family classical --tileset phantom $(workers)
	$(BUNDLE) score --benchmark phantom --protocol median-k
	@$(BUNDLE) verify tables "$(CROMA_VOLUME)/metrics/median-k/phantom" "$(RESULTS)"

test: $(TEST_VENV)/.ready ## Everything that needs neither an engine nor torch
	$(TESTS) -n auto --dist loadfile -m "not containers" $(ARGS)

##@ The steps
.PHONY: tiles embed score verify status
tiles: $(BUNDLE) ## Put a declared tileset on the volume (TILESET=phantom)
	$(BUNDLE) tiles fetch $(TILESET) $(workers)

embed: tiles ## Embed a tileset with a family's encoders (FAMILY=classical TILESET=phantom)
	$(BUNDLE) embed --family $(FAMILY) --tileset $(TILESET) --device $(DEVICE) $(workers) \
	  $(if $(ENCODERS),--encoders $(ENCODERS)) $(if $(filter 1,$(FORCE)),--force)

score: ## Score every embedded benchmark (PROTOCOL=median-k), in the scoring image where it is built, else in the venv
	@case "$(RUNTIME)" in \
	  docker|venv) use=$(RUNTIME) ;; \
	  auto) if docker image inspect "$$(docker compose config --images score 2>/dev/null)" >/dev/null 2>&1; then use=docker; else use=venv; fi ;; \
	  *) echo "error: RUNTIME=$(RUNTIME): wanted auto, docker or venv" >&2; exit 2 ;; \
	esac; $(MAKE) score-$$use

score_options = --protocol $(PROTOCOL) $(if $(BENCHMARK),--benchmark $(BENCHMARK)) $(if $(ENCODERS),--encoders $(ENCODERS)) \
  $(if $(CONFOUNDER),--confounder $(CONFOUNDER)) $(if $(M),--m $(M))

.PHONY: score-docker score-venv
score-docker: engine volume-owner
	@image=$$(docker compose config --images score); \
	  of=$$(docker image inspect --format '{{index .Config.Labels "org.opencontainers.image.revision"}}' "$$image" 2>/dev/null || true); \
	  echo "scoring in $$image, built from commit $${of:-unknown}" >&2; \
	  [ -z "$$of" ] || [ "$$of" = "$(commit)" ] || echo "warning: this checkout is at $(commit); make images renews the image" >&2
	CROMA_UID=$(uid) CROMA_GID=$(gid) docker compose run --rm score \
	  $(score_options)

score-venv: $(BUNDLE)
	@echo "scoring in $(VENV), without network isolation (RUNTIME=docker for the image)" >&2
	$(BUNDLE) score $(score_options)

verify: $(BUNDLE) ## Re-hash every artifact on the volume, then compare what is scored with the published figures
	$(BUNDLE) verify artifacts
	$(BUNDLE) verify published --if-scored

status: $(BUNDLE) ## What is declared, embedded, missing
	$(BUNDLE) status

##@ Images
.PHONY: images test-containers
images: engine ## Build the images (BASE_IMAGE=… for another base; CA_BUNDLE=… PIP_CONF=… behind a proxy, docs/hospital-it.md)
	$(if $(BASE_IMAGE),BASE_IMAGE="$(BASE_IMAGE)" $(if $(findstring @,$(BASE_IMAGE)),BASE_DIGEST=$(lastword $(subst @, ,$(BASE_IMAGE))))) \
	  $(if $(CA_BUNDLE),CROMA_CA_BUNDLE="$(CA_BUNDLE)") \
	  $(if $(PIP_CONF),CROMA_PIP_CONF="$(PIP_CONF)") CROMA_GIT_COMMIT="$(commit)" \
	  CROMA_LOCK_SHA256=$$(sha256sum <images/score/requirements.lock | cut -c 1-64) docker compose build

test-containers: engine $(TEST_VENV)/.ready ## The tests that need a Docker engine: images, compose
	$(TESTS) -m containers tests/containers $(ARGS)

##@ Development
.PHONY: bench
bench: $(TEST_VENV)/.ready ## Time the scorer beside croma and the matrix product (about 15 minutes; ARGS="tcga --no-croma")
	$(TEST_VENV)/bin/python benchmarks/score.py $(ARGS)

.PHONY: lint format docs lock results clean engine volume-owner
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

lock: ## Renew the locks (needs uv); UPGRADE=1 takes newer releases
	$(LOCK) $(if $(UPGRADE),--upgrade) requirements/tools.in -o requirements/tools.lock
	$(LOCK) $(if $(UPGRADE),--upgrade) requirements/test.in -o requirements/test.lock
	$(LOCK) $(if $(UPGRADE),--upgrade) images/score/requirements.in -o images/score/requirements.lock
	$(LOCK) $(if $(UPGRADE),--upgrade) images/score/build.in -o images/score/build.lock

results: $(BUNDLE) ## Renew results/phantom from the volume's scores of the phantom (say why in the commit)
	@test -s "$(CROMA_VOLUME)/metrics/median-k/phantom/run.json" || { echo "error: the phantom is not scored: make demo" >&2; exit 3; }
	rm -f "$(RESULTS)"/*.csv "$(RESULTS)/run.json"
	cp "$(CROMA_VOLUME)"/metrics/median-k/phantom/{*.csv,run.json} "$(RESULTS)/"

clean: ## Remove the venvs and caches, not the volume
	rm -rf .venv .venv-test .cache .mypy_cache .ruff_cache .pytest_cache build dist

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

$(BUNDLE): requirements/tools.lock pyproject.toml
	$(call venv,$(VENV),requirements/tools.lock)
	@touch $@

$(TEST_VENV)/.ready: requirements/test.lock pyproject.toml
	$(call venv,$(TEST_VENV),requirements/test.lock)
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

# Files on the volume belong to the caller; for root, to the volume's owner. An empty volume of root's is given to 10001.
uid = $(or $(CROMA_UID),$(shell if [ "$$(id -u)" != 0 ]; then id -u; else stat -c %u "$(CROMA_VOLUME)"; fi))
gid = $(or $(CROMA_GID),$(shell if [ "$$(id -u)" != 0 ]; then id -g; else stat -c %g "$(CROMA_VOLUME)"; fi))
volume-owner:
	@mkdir -p "$(CROMA_VOLUME)"
	@if [ "$$(id -u):$$(stat -c %u "$(CROMA_VOLUME)")" = 0:0 ] && \
	  [ -z "$$(find "$(CROMA_VOLUME)" -mindepth 1 ! -name .gitkeep -print -quit)" ]; then chown 10001:10001 "$(CROMA_VOLUME)"; fi
