# The book's commands. Each sets up what it needs in .venv first; with all in place that takes no time.

PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11 python,\
	$(shell $(name) -c 'import sys; sys.version_info >= (3, 11) and print("$(name)")' 2>/dev/null)) python3)
BIN := .venv/bin
# Threads that wait for their turn sleep. Spinning gains a few percent on a machine that does nothing else, and costs
# chapters minutes on one that does.
export OMP_WAIT_POLICY ?= PASSIVE
# Without compiled files every process compiles the library again.
unexport PYTHONDONTWRITEBYTECODE

# Tests run side by side, but in no more than four processes: they launch ranks and browsers themselves.
SIDE_BY_SIDE := -n logical --maxprocesses 4 --durations 40 --durations-min 5

# Where it is served: make serve HOST=0.0.0.0 PORT=8080. Compilers and shells put a HOST of their own into the environment.
WHERE = $(if $(filter command,$(firstword $(origin HOST))),--host $(HOST)) $(if $(PORT),--port $(PORT))

.DEFAULT_GOAL := help
.PHONY: help setup serve test quick book pdf epub wheels lab check normalise clean

help:  ## this list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup:  ## only set up: .venv, Python and front-end packages
	@$(PYTHON) tools/bootstrap.py

serve: setup  ## serve the book on this machine at once, while chapters that have changed are run
	@exec $(BIN)/python tools/build_book.py --serve $(WHERE)

book: setup  ## build the site into _build/html: render it, and run chapters that have changed
	@$(BIN)/python tools/build_book.py

pdf: book  ## the same book for paper: _build/playbook.pdf, printed by Chromium
	@$(BIN)/python tools/chromium.py --install > /dev/null
	@$(BIN)/python tools/paper.py pdf

epub: book  ## the same book for e-readers: _build/playbook.epub
	@$(BIN)/python tools/chromium.py --install > /dev/null
	@$(BIN)/python tools/paper.py epub

test: book  ## run all tests: library, tools, every page in a browser, every notebook
	@$(BIN)/python tools/chromium.py --install || true
	@$(BIN)/python tools/slurm.py --install || true
	@status=0; \
	for part in '--dist worksteal tests' '--dist loadfile --nbval-lax --built book'; do \
		echo "$(BIN)/python -m pytest $(SIDE_BY_SIDE) $$part"; \
		$(BIN)/python -m pytest $(SIDE_BY_SIDE) $$part || status=$$?; \
	done; exit $$status

# What a GPU machine without installs lacks for benchmarks/on_gpu.py, which finds it in wheels/: pure Python, a few MB.
TRAVEL := liger-kernel allpairspy cloudpickle pytest pluggy iniconfig pytest-xdist execnet hypothesis sortedcontainers

wheels: setup  ## what travels to a GPU machine with this checkout: peers and pytest, into wheels/
	@$(BIN)/pip download --quiet --no-deps --only-binary :all: --platform any --implementation py --abi none --dest wheels $(TRAVEL)

quick: setup  ## after a change: tests that it may break, the nearest first, for less than a minute
	@$(BIN)/python tools/quick.py

lab:  ## open the chapters as notebooks in JupyterLab; LAB_FLAGS are its own
	@$(PYTHON) tools/bootstrap.py lab
	@exec $(BIN)/python tools/lab.py $(WHERE) -- $(LAB_FLAGS)

# What reads the widgets' JavaScript: 100 MB that no page needs, and no set-up waits for.
BIOME := widgets/lint/node_modules/.bin/biome
$(BIOME): widgets/lint/package-lock.json
	@PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --no-audit --no-fund --loglevel=error --prefix widgets/lint
	@touch $@

check: setup $(BIOME)  ## lint, format, types, notebooks in normal form, limits of chapters
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/notebooks.py --check
	$(BIN)/python tools/chapters.py --check
	cd widgets && PATH="$(CURDIR)/$(BIN):$$PATH" lint/node_modules/.bin/biome check --error-on-warnings

normalise: setup $(BIOME)  ## format the code and bring notebooks into normal form
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/python tools/notebooks.py
	cd widgets && PATH="$(CURDIR)/$(BIN):$$PATH" lint/node_modules/.bin/biome check --write

clean:  ## remove what was built; .venv stays
	rm -rf _build site_assets/vendor
