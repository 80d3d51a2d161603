# Everything that a fresh checkout needs: Python 3.11 or newer, pip and make. `make` alone prints this help.

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
# more than there are cores: most tests wait for a disk or a clock most of the time
WORKERS ?= 4
KINDS   ?= cluster sentinel redis7
# what keeps its promises in Redis, and so is tried on each kind of it
SUITES  ?= tests/lua tests/properties tests/integration/api tests/integration/execution tests/integration/broker/test_gatherer.py \
	tests/integration/keeper/test_keeper.py tests/integration/keeper/test_keeper_repairs.py tests/integration/keeper/test_dead_letters.py \
	tests/integration/broker/test_outages.py
FAST    := not heavy and not redis7 and not faults and not tools and not chaos and not promtool and not kubectl and not faketime and not real_servers

# Without its byte code each process of the tests compiles the product again, and each worker all tests
unexport PYTHONDONTWRITEBYTECODE

BIN   := $(VENV)/bin
SERVES := $(VENV)/.serves
READY := $(VENV)/.installed
LOCK  := requirements.lock
FILES := director api tests docs/examples k8s

INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c $(LOCK)
# A line for each package that it collects. Errors go to stderr, and a pipe hides the exit status: the stamp tells it
PROGRESS = awk '/^ *Collecting / { printf "  %d %s\n", ++n, $$2; fflush() }'

HASHED = $(VENV)-lock/bin/uv pip compile --quiet --generate-hashes --no-header --no-annotate -c $(LOCK) \
	--python-version 3.13 --python-platform linux

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help up down test test-all test-kinds prove lint types format bench bench-check bench-keep deaths soak docs wheel release chart helm lock clean

help:  ## print this
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) \
		| awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

up: $(SERVES)  ## start everything on this machine: make up ARGS="--port 9000 --home DIR"
	@$(BIN)/director up $(ARGS)

down: $(SERVES)  ## stop what `make up` started: make down ARGS="--home DIR"
	@$(BIN)/director down $(ARGS)

# A test that fails gets a second try, since a neighbour can starve it; the last line names it, and it is a bug to mend.
test: $(READY)  ## run the tests: make test ARGS="-k cancel" WORKERS=0
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --reruns 1 -m "$(FAST)" $(ARGS)

test-all: $(READY)  ## run all tests, Debian's redis-server and the heavy ones too; the last line says what did not run
	@$(BIN)/python -m pytest $(ARGS)

test-kinds: $(READY)  ## run the tests of queue and API on other kinds of Redis: make test-kinds KINDS=cluster SUITES=tests/lua
	@set -e; for kind in $(KINDS); do echo "on $$kind:"; $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --reruns 1 \
		--redis-kind $$kind -m "$(FAST) and not long" $(SUITES) $(ARGS); done

prove: $(READY)  ## try every order of calls in small worlds, and find each mutant of the scripts: make prove ARGS="--workers 4"
	@mkdir -p build
	@$(BIN)/director prove --seconds 120 --json build/prove.json $(ARGS)
	@$(BIN)/python -m tests.integration.lab.prove.mutants build/mutants.json

lint: $(READY)  ## check style
	@$(BIN)/ruff check $(FILES)
	@$(BIN)/ruff format --check $(FILES)

types: $(READY)  ## check types, strictly
	@$(BIN)/mypy

format: $(READY)  ## put style right
	@$(BIN)/ruff check --fix --quiet $(FILES)
	@$(BIN)/ruff format $(FILES)

bench: $(READY)  ## measure it beside what others do: make bench ARGS="--only drain,e2e"
	@$(BIN)/python -m tests.bench run $(ARGS)

bench-check: $(READY)  ## fail where a ratio became 15 % worse than the kept one, and more than noise
	@$(BIN)/python -m tests.bench check $(ARGS)

bench-keep: $(READY)  ## keep the latest results to compare with, and put them into docs/reference/internals/benches.md
	@$(BIN)/python -m tests.bench keep $(ARGS)

deaths: $(READY)  ## kill workers and Redis under ours and other queues, in 15 minutes: make deaths ARGS="--sides ours,bullmq"
	@$(BIN)/python -m tests.bench deaths $(ARGS)

soak: $(READY)  ## half an hour at half of what it can do: does anything grow? make soak ARGS="--minutes 3"
	@$(BIN)/python -m tests.bench soak $(ARGS)

docs: $(VENV)/.docs  ## build the documentation into build/site; a link that leads nowhere fails it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict  # with --quiet it counts no warnings
	@echo "Read it at http://127.0.0.1:8001, where its search works: $(BIN)/python -m http.server -b 127.0.0.1 -d build/site 8001"

wheel: $(READY)  ## build the wheel of this checkout into dist/
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w dist .
	@ls dist

release: $(READY)  ## build wheel, sdist, SBOM and SHA256SUMS of the commit into dist/, which it empties first
	@changed=$$(git status --porcelain) && test -z "$$changed" || { \
		echo "A release is built from a commit, and this is not in it:"; echo "$$changed"; exit 1; }
	@rm -rf dist $(VENV)-bill && $(PYTHON) -m venv $(VENV)-bill
	@$(VENV)-bill/bin/python -m pip install --quiet --disable-pip-version-check -c $(LOCK) cyclonedx-bom
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m tests.support.release_files dist $(VENV)-bill/bin/python
	@rm -rf $(VENV)-bill
	@cat dist/SHA256SUMS

chart: $(READY)  ## make the Helm chart of this checkout in build/chart/director, from the manifests; asks kubectl
	@$(BIN)/python k8s/make_chart.py build/chart/director

helm: $(READY)  ## get the program that the tests of the chart run, 38 MB
	@test -x $(BIN)/helm || $(BIN)/python -m tests.support.charts $(BIN)/helm

lock:  ## pin the newest versions of everything again
	@rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	@$(VENV)-lock/bin/python -m pip install --quiet --disable-pip-version-check '.[docs,examples,test]' cyclonedx-bom
	@{ sed -n '/^#/p' $(LOCK); $(VENV)-lock/bin/python -m pip freeze --exclude director-queue; } > $(LOCK).new
	@mv $(LOCK).new $(LOCK)
	@$(VENV)-lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(HASHED) pyproject.toml --extra s3 --extra otel -o k8s/requirements/image.txt
	@echo hatchling | $(HASHED) - -o k8s/requirements/build.txt
	@echo cog | $(HASHED) - -o k8s/requirements/hello.txt
	@rm -rf $(VENV)-lock

clean:  ## remove the virtual environment; data in .director stays
	@rm -rf $(VENV)

# Each stamp is newer than what it was made from, so that the second time is quick.
$(SERVES): pyproject.toml $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) -V 2>&1)." \
			"Name another: make PYTHON=python3.12 …"; exit 1; }
	@echo "installing into $(VENV) …"
	@$(MAKE) --silent --no-print-directory $(BIN)/python
	@rm -f $@; { $(INSTALL) -e '.[examples]' && touch $@; } | $(PROGRESS); test -e $@

$(READY): $(SERVES)
	@echo "installing what the tests need …"
	@rm -f $@; { $(INSTALL) -e '.[examples,test]' && touch $@; } | $(PROGRESS); test -e $@

# What builds the documentation is 17 packages that nothing else needs.
$(VENV)/.docs: $(SERVES)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(LOCK) -e '.[docs]'
	@touch $@

# Debian splits what `venv` needs to bring pip along into a package of its own: without it, the system's pip does.
$(BIN)/python:
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
		$(PYTHON) -m venv --clear --without-pip $(VENV) \
		&& $(PYTHON) -m pip --python $(BIN)/python install --quiet --disable-pip-version-check pip; } || { \
		rm -rf $(VENV); \
		echo "Neither venv nor pip works for $(PYTHON). On Debian: apt install python3-venv python3-pip"; exit 1; }
