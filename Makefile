# A thin face over `testbed VERB`. Every target makes its prerequisites once; `make help` lists all.

.DEFAULT_GOAL := help
SHELL := /bin/sh
MAKEFLAGS += --no-print-directory

TESTBED := .venv/bin/testbed
READY := .venv/.ready

# Values typed on the command line reach the program as data, by environment, and are never
# expanded nor seen by a shell: make scenario BW='$(shell id)' is an unreadable bandwidth.
VARIABLES := NODES BW CPU MEM DELAY LOSS SWITCH NAME FORCE MODE BACKEND STRATEGY WORKLOAD MODEL \
             BATCH STEPS SEED SCENARIO SCRIPT CONFIG RESULTS DRY_RUN
unexport $(VARIABLES)
$(foreach name,$(VARIABLES),$(eval export TESTBED_$(name) := $$(value $(name))))
export YES

# What root wrote for a user behind sudo is given back, also after a failure.
OWNED := trap dev/give-back EXIT;

##@ The main job
scenario: $(READY) ## Write a cluster as VNX XML (NODES= BW= CPU= MEM= DELAY= LOSS= SWITCH= NAME=)
	@$(OWNED) $(TESTBED) scenario
run: $(READY) ## One trial, end to end (as scenario, and SCENARIO= MODE= BACKEND= MODEL= WORKLOAD= STEPS=)
	@$(OWNED) $(TESTBED) run
sweep: $(READY) ## All trials of a matrix, figures, report (CONFIG=scenarios/quick.yaml DRY_RUN=1)
	@$(OWNED) $(TESTBED) sweep
plots: $(READY) ## Draw a sweep's figures again (RESULTS=results/quick)
	@$(OWNED) $(TESTBED) plots
report: $(READY) ## Figures and report again (RESULTS=results/quick)
	@$(OWNED) $(TESTBED) report
demo: .venv/.demo ## The README's figures from a committed sweep: no root, no TensorFlow
	@$(OWNED) .venv/bin/python -m testbed report results/demo

##@ The machine
setup: $(READY) ## Python environment and system packages, once (YES=1 asks nothing)
doctor: $(READY) ## What this machine can do, and the command that mends each gap
	@$(OWNED) $(TESTBED) doctor
clean-nodes: $(READY) ## Remove what an interrupted run left, and nothing else
	@$(OWNED) $(TESTBED) clean

##@ The project
test: $(READY) ## Lint, types and tests: what CI runs
	@$(OWNED) dev/test
test-all: $(READY) ## Also the long tests
	@$(OWNED) dev/test --all
bench: $(READY) ## How fast the testbed itself is; results/bench
	@$(OWNED) .venv/bin/python dev/bench.py
lock: ## Write requirements.lock and requirements-demo.lock anew (needs uv)
	@dev/lock

help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

$(READY): requirements.lock pyproject.toml dev/setup
	@$(OWNED) dev/setup
.venv/.demo: requirements-demo.lock dev/setup
	@$(OWNED) dev/setup --demo

.PHONY: scenario run sweep plots report demo setup doctor clean-nodes test test-all bench lock help
