# Two commands matter: `make run` starts a broker, `make test` checks everything that a change can break. `make check`
# runs the long checks.
#
# Everything is built inside the checkout (.venv, build) and without root. Targets that are up to date are not rebuilt,
# so they work without a network. A missing tool is named in one line. A .venv that this Makefile did not make is never
# changed; VENV names another directory.

PYTHON ?= python3
PORT ?= 5672
DATA ?= ./data
MESSAGES ?= 200000
PYTEST_ARGS ?=

# Always keep bytecode, because the tests start Python hundreds of times.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
BIN := $(VENV)/bin
JOBS := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

# Some machines have a compiler, but not under make's default name cc.
ifeq ($(origin CC),default)
CC := $(firstword $(foreach name,cc gcc clang,$(if $(shell command -v $(name) 2>/dev/null),$(name))))
endif

# Each folder is a layer; csrc/tests is linked only into test programs, and csrc/consensus is a module of its own.
CORE := $(sort $(filter-out csrc/consensus/% csrc/tests/%,$(wildcard csrc/*/*.c csrc/*/*/*.c)))
CORE_HEADERS := $(sort $(filter-out csrc/consensus/% csrc/tests/%,$(wildcard csrc/*/*.h csrc/*/*/*.h)))
CONSENSUS := $(sort $(wildcard csrc/consensus/*.c))
CONSENSUS_HEADERS := $(sort $(wildcard csrc/consensus/*.h))
# In a recipe: what of it can be compiled. A sub-make may have just found libraft.
ENGINE = $(if $(shell [ ! -e $(LIBRAFT)/origin ] || echo it is here),$(CONSENSUS))
LAYOUT := csrc/format/layout.def
# The simulated system, which every test program is linked with; the simulator of consensus is two programs of their own: over a
# model of the log, and over the real one. They share SIMULATED_BOTH.
SIMULATED_REAL := $(sort $(wildcard csrc/tests/sim/consensus_real*.c))
SIMULATED_BOTH := $(addprefix csrc/tests/sim/,consensus.c consensus_net.c consensus_shared.c)
SIMULATED := $(sort $(wildcard csrc/tests/sim/consensus*.c))
SIMULATOR := $(sort $(filter-out $(SIMULATED),$(wildcard csrc/tests/sim/*.c)))
# Without the source of libraft the tests of what is built with it are left out.
LIBRAFT := build/libraft
CTESTS := $(sort $(filter-out $(if $(wildcard $(LIBRAFT)/origin),,csrc/tests/unit/test_engine_%),$(wildcard csrc/tests/unit/test_*.c)))
PROOFS := $(sort $(wildcard csrc/tests/proof/*.c))
HOT := $(sort $(wildcard logstore/_hot/*.c))
BENCHMARKS := $(sort $(wildcard benchmarks/*.c))
HOT_HEADERS := $(sort $(wildcard logstore/_hot/*.h))
CONNECTOR_C := logstore/spark/jvm/scanner.c
CONNECTOR_SOURCES := $(sort $(wildcard logstore/spark/jvm/*.java)) $(CONNECTOR_C) logstore/_build_jvm.py
# The C headers of a JDK, with which the native part of the connector is compiled; empty: there is none.
JNI_H := $(patsubst %/jni.h,%,$(wildcard $(patsubst %/bin/javac,%/include/jni.h,$(realpath $(shell command -v javac 2>/dev/null)))))
JNI_FLAGS := $(if $(JNI_H),-isystem $(JNI_H) -isystem $(JNI_H)/linux)
ALL_C := $(sort $(CONNECTOR_C) $(HOT) $(HOT_HEADERS) $(CORE) $(CORE_HEADERS) $(CONSENSUS) $(CONSENSUS_HEADERS) $(wildcard csrc/tests/*/*.[ch] benchmarks/*.[ch]))

C_FLAGS := -std=c11 -g -D_GNU_SOURCE -Wall -Wextra -pthread -Icsrc/include -Icsrc
PYTHON_H = $(shell $(firstword $(wildcard $(BIN)/python) $(PYTHON)) -c 'import sysconfig; print(sysconfig.get_path("include"))')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | while IFS='	' read -r name text; do \
		printf '  make %-21s %s\n' "$$name" "$$text"; done

# ---- Required tools, checked before any other command -------------------------------------------------------------

define CHECK_TOOLS
@fine=true; say() { echo "logstore: $$1" >&2; fine=false; }; \
python='$(PYTHON)'; if $(BIN)/python -m pip --version >/dev/null 2>&1; then python=$(BIN)/python; fi; \
if ! $$python -c 'pass' >/dev/null 2>&1; then \
	say "Python 3.11 or newer is needed, and $$python does not run: install it, or name one with PYTHON=/path/to/python3"; \
elif ! $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	say "Python 3.11 or newer is needed, and $$python is $$($$python -V 2>&1): name a newer one with PYTHON=python3.12"; \
else \
	[ $$python = $(BIN)/python ] || $$python -c 'import ensurepip, venv' >/dev/null 2>&1 || \
		say "Python's venv and pip are needed, and $$python lacks them: install the package python3-venv"; \
	$$python -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || \
		say "Python's C headers (Python.h) are needed, and $$python lacks them: install the package python3-dev"; \
fi; \
if [ -z '$(CC)' ]; then \
	say "a C compiler is needed, and none is here: install gcc or clang, or name one with CC=/path/to/it"; \
elif ! command -v $(firstword $(CC)) >/dev/null 2>&1; then \
	say "a C compiler is needed, and $(CC) is not here: install gcc or clang, or name one with CC=/path/to/it"; \
elif ! printf '#include <stdio.h>\nint main(void) { return 0; }\n' | $(CC) -x c -o /dev/null - >/dev/null 2>&1; then \
	say "a C compiler is needed, and $(CC) cannot build the smallest program: install the C library's headers (libc6-dev)"; \
fi; \
$$fine
endef

# ---- The environment ----------------------------------------------------------------------------------------------

# The mark and the stamps are inside .venv, so that removing .venv removes them, too. Environments of earlier versions
# have stamps only.
OURS := $(VENV)/.made-by-logstore
FULL := $(VENV)/.installed-everything
BROKER := $(VENV)/.installed-broker
CLUSTER := $(VENV)/.installed-cluster
BENCH := $(VENV)/.installed-bench
DEMO := $(VENV)/.installed-demo
PINS := pyproject.toml setup.py constraints.txt
# Only `make bench` installs the other stores that it measures.
EVERY_EXTRA := arrow,broker,cluster,coilmq,delta,iceberg,lint,postgres,report,spark,test,tpc

define CHECK_VENV
@if [ -e '$(VENV)' ] || [ -L '$(VENV)' ]; then \
	for mark in '$(OURS)' '$(VENV)'/.installed-*; do [ ! -e "$$mark" ] || exit 0; done; \
	echo "logstore: $(VENV) was not made by this Makefile and stays as it is: move it away, or name another directory with VENV=.venv-logstore" >&2; \
	exit 2; \
fi
endef

# The mark is written first and kept by a repair, so that an interrupted environment is still known as ours. The
# modules are left out of the installation, because $(EXTENSION) compiles them. In the mode `compat` the environment
# names the checkout in a .pth file, which mypy and editors understand.
define INSTALL
$(CHECK_VENV)
$(CHECK_TOOLS)
@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "logstore: making the environment $(VENV)"; \
	mkdir -p '$(VENV)' && touch '$(OURS)' && \
	find '$(VENV)' -mindepth 1 -maxdepth 1 ! -name '$(notdir $(OURS))' -exec rm -rf {} + && \
	$(PYTHON) -m venv '$(VENV)' && echo '*' > '$(VENV)/.gitignore'; }
@touch '$(OURS)'
@$(BIN)/python tools/install.py 'the build tools' pip setuptools wheel cffi
@CC='$(CC)' LOGSTORE_MODULES=no $(BIN)/python tools/install.py 'logstore with what it needs ($(1))' \
	--no-build-isolation --config-settings editable_mode=compat -e '.[$(1)]'
@touch $@
endef

$(FULL): $(PINS)
	$(call INSTALL,$(EVERY_EXTRA))

$(BROKER): $(PINS)
	$(call INSTALL,broker)

$(CLUSTER): $(PINS)
	$(call INSTALL,broker$(COMMA)cluster)

$(BENCH): $(PINS)
	$(call INSTALL,bench)

# Spark needs Java; the extra `java` installs one if the machine has none.
$(DEMO): $(PINS)
	$(call INSTALL,broker$(COMMA)demo$(COMMA)report$(COMMA)spark$(if $(shell command -v java),,$(COMMA)java))

# ---- The source of libraft ----------------------------------------------------------------------------------------

# Looked for once, and again if another one is named. Without it one line says so, and all but the cluster is built.
LOOKED_FOR := build/.libraft-looked-for
NAMED := build/.libraft-named

$(NAMED): FORCE
	@mkdir -p build
	@echo '$(LOGSTORE_RAFT_SOURCE)' > $@.now
	@if cmp -s $@.now $@; then rm $@.now; else mv $@.now $@; fi

$(LOOKED_FOR): logstore/_build_consensus.py $(NAMED)
	@$(PYTHON) logstore/_build_consensus.py $(LIBRAFT)
	@touch $@

.PHONY: libraft
libraft: ## look again for the source of libraft, which the cluster needs (LOGSTORE_RAFT_SOURCE=...)
	@rm -f $(LOOKED_FOR)
	+@$(SUBMAKE) $(LOOKED_FOR)

# ---- The extension modules ----------------------------------------------------------------------------------------

EXTENSION := build/.extension
BUILT_WITH := build/.extension-built-with
MODULES := logstore/_core*.so logstore/_hot*.so logstore/_consensus*.so

# Rewritten only if it changes: Python, the compiler, the flags, the list of source files, or how they are built.
$(BUILT_WITH): FORCE
	@mkdir -p build
	@echo "$$($(BIN)/python -V)" '$(CC) $(CFLAGS) $(LOGSTORE_SANITIZE) $(CORE) $(CONSENSUS) $(HOT)' \
		"$$(cat setup.py logstore/_build_core.py logstore/_build_consensus.py | cksum)" > $@.now
	@if cmp -s $@.now $@; then rm $@.now; else \
		[ ! -e $@ ] || rm -rf $(MODULES) build/lib.* build/temp.*; mv $@.now $@; fi

# In a parallel make the environment comes first, because its Python builds the modules.
$(EXTENSION) $(BUILT_WITH): | $(if $(STAGE),$(FULL))

$(EXTENSION): $(CORE) $(CORE_HEADERS) $(LAYOUT) $(HOT) $(HOT_HEADERS) $(CONSENSUS) $(CONSENSUS_HEADERS) \
		logstore/_build_core.py setup.py $(BUILT_WITH) $(LOOKED_FOR)
	$(CHECK_TOOLS)
	@echo "logstore: compiling the extension modules ($(words $(CORE) $(HOT) $(CONSENSUS)) C files)"
	@[ -e $@ ] || rm -rf build/lib.* build/temp.* # an interrupted build leaves files that look complete
	@rm -f $@
	@CC='$(CC)' $(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

.PHONY: FORCE
FORCE:

# ---- The JVM connector for Spark -----------------------------------------------------------------------------------

# Tried once, and again if a source changes. Without a JDK one line says so, and the package works without the jar.
CONNECTOR := build/.connector

$(CONNECTOR): $(CONNECTOR_SOURCES) $(CORE) $(CORE_HEADERS) $(LAYOUT) | $(FULL)
	@CC='$(CC)' $(BIN)/python logstore/_build_jvm.py
	@mkdir -p build && touch $@

.PHONY: jar
jar: $(FULL) ## build the JVM connector for Spark (needs a JDK)
	@rm -f $(CONNECTOR)
	+@$(SUBMAKE) $(CONNECTOR)

# ---- The commands -------------------------------------------------------------------------------------------------

.PHONY: run
run: $(if $(wildcard $(FULL)),$(FULL),$(BROKER)) $(EXTENSION) ## start the broker on 127.0.0.1 (PORT=5672 DATA=./data)
	@$(BIN)/logstore serve '$(DATA)' --host 127.0.0.1 --port '$(PORT)'

.PHONY: cluster
cluster: $(if $(wildcard $(FULL)),$(FULL),$(CLUSTER)) $(EXTENSION) ## three members of a cluster; says how to publish, and to kill one
	@$(BIN)/logstore cluster demo

.PHONY: demo
demo: $(if $(wildcard $(FULL)),$(FULL),$(DEMO)) $(EXTENSION) ## the tour: broker, clients, kill -9, export, Spark, a page (DEMO_MESSAGES=200000)
	@$(BIN)/python tools/demo.py

.PHONY: setup
setup: $(FULL) $(EXTENSION) $(CONNECTOR) ## the full environment in .venv: every extra in use and every test tool

# For CI: installing mostly waits for the network, and the programs of the C tests need neither it nor Python.
.PHONY: ci-setup ctest-programs
ci-setup:
	+@$(SUBMAKE) --output-sync=line STAGE=setup setup ctest-programs

ctest-programs: $(LOOKED_FOR)
	+@$(SUBMAKE) VARIANT=plain made-ctests

# Checks without Python run on all cores while the environment is installed.
.PHONY: test check
test: ## set everything up and check what a change can break: lint, compilers, C and Python tests
	+@$(SUBMAKE) --output-sync=line STAGE=checks lint strict ctest pytest-collected
	+@$(SUBMAKE) pytest
	@echo "make test: passed; the long checks are 'make check'"

# The Python tests under ASan come first: they use one core until they end, and the C tests fill the others. Slow tests wait
# for disks, networks and each other; the programs of the proof are compiled meanwhile.
check: ## the long checks: sanitizers, slow tests and the proof
	+@$(SUBMAKE) --output-sync=line STAGE=sanitize pytest-asan pytest-overwritten sanitize ctest-trail
	+@$(SUBMAKE) --output-sync=line STAGE=slow test-slow proof-programs
	+@$(SUBMAKE) proof PROOF_ARGS=--part
	@echo "make check: passed"

# A C test program needs no Python.
.PHONY: test-one
test-one: $(LOOKED_FOR) $(if $(T),$(if $(wildcard csrc/tests/unit/$(T).c),,setup)) ## one test: a C program, a Python file or a part of names (T=test_queues)
	+@if [ -z '$(T)' ]; then echo "logstore: which one? make test-one T=test_queues, the name of a C test program (csrc/tests/unit/)," \
		"a Python file (T=tests/store/test_queues.py), or a part of names of Python tests (T=purge)" >&2; exit 2; \
	elif [ -e 'csrc/tests/unit/$(T).c' ]; then $(SUBMAKE) VARIANT=plain 'run-$(T)'; \
	elif [ -e '$(firstword $(subst ::, ,$(T)))' ]; then $(BIN)/python -m pytest -q '$(T)' $(PYTEST_ARGS); \
	elif [ -n '$(FILES_OF_T)' ]; then $(BIN)/python -m pytest -q $(FILES_OF_T) $(PYTEST_ARGS); \
	else $(BIN)/python -m pytest -q -k '$(T)' $(PYTEST_ARGS); fi

# Workers wait often, so there are two more than there are cores. The tests with Spark share one session, in one process that
# runs with the workers; its output is kept until it ends. With PYTEST_ARGS all run in one process, for --pdb or -s.
# Where UNSTABLE names a file, as in CI, a few failed tests run once more, alone; those that pass then are listed there.
PYTEST := $(BIN)/python $(if $(UNSTABLE),tools/pytest_once_more.py '$(UNSTABLE)',-m pytest)

.PHONY: pytest pytest-collected pytest-workers pytest-spark
pytest: setup ## the Python tests alone (PYTEST_ARGS=...)
ifeq ($(PYTEST_ARGS),)
	+@$(SUBMAKE) STAGE=pytest pytest-workers pytest-spark
else
	@$(BIN)/python -m pytest -q -m 'not slow' $(PYTEST_ARGS)
endif

# Workers that start together would each compile every test file; here that is done once. It also finds files that cannot
# be imported.
pytest-collected: setup
	@$(BIN)/python -m pytest -q --collect-only -m 'not slow' > build/pytest-collected.log 2>&1 || { cat build/pytest-collected.log; exit 1; }

# Every worker imports all files that it is given, and what they import: pyspark here, and in test-slow all files without a slow test.
pytest-workers:
	@$(PYTEST) -q -m 'not slow and not spark' --ignore=tests/spark $(WORKERS)

pytest-spark:
	@if $(PYTEST) -q -m 'not slow' tests/spark -o cache_dir=build/pytest-spark > build/pytest-spark.log 2>&1; \
		then echo "with Spark: $$(tail -n 1 build/pytest-spark.log)"; \
		else cat build/pytest-spark.log; echo "with Spark: FAILED" >&2; exit 1; fi

# `make check` runs a fixed part of each; MEMORY_ARGS=--all, which the torture uses, runs all tests.
.PHONY: pytest-overwritten pytest-asan
pytest-overwritten: setup ## Python tests where freed memory is overwritten (MEMORY_ARGS=--all)
	@$(BIN)/python tools/memory_tests.py overwritten $(MEMORY_ARGS)

pytest-asan: setup ## Python tests with the extension under ASan (MEMORY_ARGS=--all)
	@$(BIN)/python tools/memory_tests.py asan $(MEMORY_ARGS)

# The programs of the proof are built first, so that building does not count as proof time.
BUDGET_S ?= 600
PROVING := explorer replicas sweeps bytes history
# Without the source of libraft the simulator is left out.
PROVING_ENGINE = $(if $(ENGINE),build/c/proof/consensus build/c/proof/consensus_real)

.PHONY: proof torture proof-programs
proof-programs: setup
	+@$(SUBMAKE) VARIANT=proof $(PROVING:%=build/c/proof/%) build/c/proof/test_schedules $(PROVING_ENGINE)
	@$(BIN)/python tools/mutants.py --build-only
	@$(BIN)/python tools/fuzz.py --build-only

proof: proof-programs ## the proof that nothing is lost: every crash, fault and hostile byte of the fast tier
	@$(BIN)/python tools/torture.py --fast $(PROOF_ARGS)

# A seed gives the same run on every machine. SEED=7 tells one run in words; REAL=1 runs the real log, and not a model of it.
SIMULATES := consensus$(if $(REAL),_real)
SEEDS ?= 100
SIMULATION = $(if $(SEED),--seed $(SEED),--seeds 0 $(SEEDS)) $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(MUTANT),--mutant $(MUTANT)) \
	$(if $(ELECTIONS),--elections) $(if $(WITHOUT),--without $(WITHOUT))

.PHONY: simulate
simulate: $(LOOKED_FOR) ## members under faults in simulated time (SEEDS=100; SEED=7, SCENARIO=churn, MUTANT=ACK_EARLY, REAL=1, ELECTIONS=1, GUARDS=1)
	+@if [ ! -e $(LIBRAFT)/origin ]; then $(call LOUDLY,there is no libraft: consensus was NOT simulated); \
	elif [ -n '$(and $(GUARDS),$(REAL))' ]; then echo 'GUARDS=1 needs the model of the log: leave out REAL' >&2; exit 2; \
	elif [ -n '$(GUARDS)' ]; then $(PYTHON) tools/guards.py --seeds $(SEEDS) $(if $(SCENARIO),--scenario $(SCENARIO)); \
	elif [ -n '$(filter-out MARK,$(WITHOUT))' ]; then \
		$(PYTHON) tools/guards.py --build-only && build/mutants/build/c/mutants/$(SIMULATES) $(SIMULATION); \
	else $(SUBMAKE) VARIANT=proof build/c/proof/$(SIMULATES) && build/c/proof/$(SIMULATES) $(SIMULATION); fi

ROUNDS ?= 10
MEMBERS ?= 3
FILE_SYSTEM ?= ext4
NETWORK ?= proxies
AMQP ?=

.PHONY: chaos
chaos: setup ## members of a cluster as processes under faults, and a judge of what they confirmed (ROUNDS=100 or CONFIRMED=10000000, SEED=7, MEMBERS=5, FILE_SYSTEM=xfs or none, NETWORK=namespaces, AMQP=1: through brokers)
	@$(BIN)/python tools/chaos.py $(if $(CONFIRMED),--confirmed $(CONFIRMED),--rounds $(ROUNDS)) --members $(MEMBERS) --file-system $(FILE_SYSTEM) --network $(NETWORK) $(if $(AMQP),--amqp) $(if $(SEED),--seed $(SEED))

torture: proof-programs ## the proof and the long tests, for a number of seconds (BUDGET_S=600)
	+@$(SUBMAKE) VARIANT=trail build/c/trail/explorer build/c/trail/history
	+@$(SUBMAKE) VARIANT=tsan build/c/tsan/history || $(call LOUDLY,no thread sanitizer: concurrency is NOT checked with it)
	@$(BIN)/python tools/memory_tests.py asan --build-only
	@$(BIN)/python tools/torture.py --seconds $(BUDGET_S)

.PHONY: test-slow
test-slow: setup ## the tests that take minutes
	@$(PYTEST) -q -m slow $(if $(PYTEST_ARGS),$(PYTEST_ARGS),$(WORKERS) $(SLOW_FILES))

.PHONY: bench
bench: $(BENCH) $(EXTENSION) ## compare the store with others (BENCH_ARGS=--quick, --help ...)
	@$(BIN)/python benchmarks/run.py $(BENCH_ARGS)

.PHONY: bench-broker
bench-broker: $(BROKER) $(BENCH) $(EXTENSION) ## compare the broker with RabbitMQ, which must be installed (BENCH_ARGS=...)
	@$(BIN)/python benchmarks/rabbitmq.py $(BENCH_ARGS)

.PHONY: bench-alternatives
bench-alternatives: $(BROKER) $(BENCH) $(EXTENSION) ## compare the broker with Redis, beanstalkd, PostgreSQL and NATS, those that are installed (BENCH_ARGS=...)
	@$(BIN)/python benchmarks/alternatives.py $(BENCH_ARGS)

.PHONY: bench-quorum
bench-quorum: setup ## compare three members with brokers, RabbitMQ's quorum queues on three nodes, and a single broker (BENCH_ARGS=...)
	@$(BIN)/python benchmarks/rabbitmq_cluster.py $(BENCH_ARGS)

.PHONY: bench-scan bench-tail
bench-scan: setup ## scan and export, compared with pyarrow and with Spark reading Parquet (an hour)
	@for each in row_scan exports spark_scan; do $(BIN)/python benchmarks/$$each.py || exit 1; done

build/benchmarks/replica build/benchmarks/replica_stalls: build/benchmarks/%: benchmarks/%.c $(CORE) $(CORE_HEADERS) $(LAYOUT)
	@mkdir -p build/benchmarks
	@$(CC) $(C_FLAGS) -O2 $< $(CORE) -o $@

.PHONY: bench-replica
bench-replica: build/benchmarks/replica build/benchmarks/replica_stalls ## a leader and two copies beside a single store, and how long a copy stalls (MESSAGES=200000)
	@for each in $^; do place=$$(mktemp -d build/benchmarks/copies.XXXXXX) && $$each $$place $(MESSAGES); status=$$?; \
		rm -rf $$place; [ $$status -eq 0 ] || exit $$status; done

.PHONY: bench-cluster
bench-cluster: setup ## three members: publishing beside a single store, pacing, an update, fail-over (BENCH_ARGS=publish, --help ...)
	@$(BIN)/python benchmarks/cluster.py $(BENCH_ARGS)

.PHONY: bench-engine
bench-engine: $(LOOKED_FOR) ## the consensus engine alone: processor time an entry, 1,000 idle engines, memory
	+@if [ ! -e $(LIBRAFT)/origin ]; then $(call LOUDLY,there is no libraft: the engine was NOT measured); \
	else $(SUBMAKE) VARIANT=plain build/c/plain/bench_engine && build/c/plain/bench_engine; fi

bench-tail: $(BENCH) $(EXTENSION) ## 20 GiB past the bound of the log, and its picture (BENCH_ARGS=...)
	@$(BIN)/python benchmarks/tail_bound.py --svg build/benchmarks/tail_bound.svg $(BENCH_ARGS)

.PHONY: lint
lint: tidy layout types ## ruff, mypy --strict, views of C memory, clang-format and clang-tidy

.PHONY: layout types tidy
layout: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "logstore: run 'make format'" >&2; exit 1; }
	@$(BIN)/python tools/cdata_lint.py
	@$(BIN)/python tools/include_lint.py
	@$(BIN)/python tools/core_stub.py --check
	@$(BIN)/lint-imports --no-cache > build/lint-imports.log 2>&1 || { cat build/lint-imports.log; exit 1; }
	@if command -v clang-format >/dev/null 2>&1; then clang-format --dry-run -Werror $(ALL_C); \
		else $(call LOUDLY,clang-format is not here: the C code's layout was NOT checked); fi

types: setup
	@$(BIN)/mypy --strict logstore

# The analyzer follows the paths of each function up to a number of nodes; `make tidy TIDY=tidy-deep`, which the torture
# runs, goes as far as clang does by itself, which takes five times as long.
TIDY := tidy
NODES_tidy := -Xclang -analyzer-config -Xclang max-nodes=40000
NODES_tidy-deep :=

tidy: $(LOOKED_FOR)
	+@if command -v clang-tidy >/dev/null 2>&1; then $(SUBMAKE) VARIANT=$(TIDY) $(patsubst csrc/%.c,build/c/$(TIDY)/%.ok,$(CORE) $(SIMULATOR) $(SIMULATED) $(ENGINE)) \
		$(patsubst %.c,build/c/$(TIDY)/%.ok,$(HOT) $(if $(JNI_H),$(CONNECTOR_C))); \
		else $(call LOUDLY,clang-tidy is not here: the C code was NOT analysed); fi

.PHONY: format
format: setup ## format the code with ruff and clang-format
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/python tools/core_stub.py
	@if command -v clang-format >/dev/null 2>&1; then clang-format -i $(ALL_C); \
		else $(call LOUDLY,clang-format is not here: the C code was left as it is); fi

.PHONY: ctest
ctest: $(LOOKED_FOR) ## the C unit tests
	+@$(SUBMAKE) VARIANT=plain run-ctests

.PHONY: sanitize sanitize-asan sanitize-tsan
sanitize: sanitize-asan sanitize-tsan ## the C unit tests under ASan with UBSan, and those with threads under TSan

sanitize-asan: $(LOOKED_FOR)
	+@$(call WITH_SANITIZER,asan,address$(COMMA)undefined)

# The log of a program in the plain build says whether it starts a thread. EVERY=1, which the torture uses, runs all programs.
EVERY ?=
sanitize-tsan: $(LOOKED_FOR) ## the C unit tests with threads under TSan (EVERY=1: all of them)
	+@$(if $(EVERY),,$(SUBMAKE) VARIANT=plain ctest-logs || exit 1; )$(call WITH_SANITIZER,tsan,thread)

.PHONY: ctest-trail
ctest-trail: $(LOOKED_FOR) ## the C unit tests where a batch that is forced is durable only later, as with copies on other members
	+@$(SUBMAKE) VARIANT=trail run-ctests

# gcov counts branches; the longest series of power cuts reach no further branch and are left out.
COVERAGE_FLOOR := 94
ENGINE_COVERAGE_FLOOR := 92

# The file has a section for each combination of compiler and C library.
.PHONY: instructions instructions-baseline
instructions: ## count the instructions of the core's hot paths and compare with tools/instructions.json
	@$(PYTHON) tools/instructions.py

instructions-baseline: ## rewrite tools/instructions.json (WHY="reason for the change")
	@$(PYTHON) tools/instructions.py --write "$$WHY"

.PHONY: coverage
coverage: $(LOOKED_FOR) $(FULL) ## lines and branches of the core and the engine that the C tests reach (fails below its floor)
	+@if command -v gcc >/dev/null 2>&1 && command -v gcov >/dev/null 2>&1; then \
		$(SUBMAKE) VARIANT=coverage CC=gcc made-ctests && find build/c/coverage -name '*.gcda' -delete && \
		$(SUBMAKE) VARIANT=coverage CC=gcc run-ctests && \
		$(BIN)/python tools/coverage.py --floor $(COVERAGE_FLOOR) \
			--engine-floor $(ENGINE_COVERAGE_FLOOR); \
		else $(call LOUDLY,gcc and gcov are not here: coverage was NOT measured); fi

.PHONY: strict
strict: $(LOOKED_FOR) ## compile the core, the extension and the benchmarks with every warning an error, under gcc and clang
	+@found=; for cc in gcc clang; do if command -v $$cc >/dev/null 2>&1; then found=yes; \
		$(SUBMAKE) VARIANT=strict-$$cc CC=$$cc $(patsubst csrc/%.c,build/c/strict-$$cc/objects/%.o,$(CORE) $(SIMULATOR) $(SIMULATED) $(ENGINE)) \
			$(patsubst %.c,build/c/strict-$$cc/objects/%.o,$(HOT) $(BENCHMARKS) $(if $(JNI_H),$(CONNECTOR_C))) || exit 1; \
		echo "strict: clean under $$cc"; \
		else $(call LOUDLY,$$cc is not here: the core was NOT compiled with it); fi; done; [ -n "$$found" ]

.PHONY: clean
clean: ## remove build products and caches; .venv and stores stay
	@rm -rf build dist $(MODULES) logstore/spark/*.jar .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# ---- C objects and tests, a directory per variant ------------------------------------------------------------------

COMMA := ,
LOUDLY = echo "logstore: SKIPPED: $(1)" >&2
SLOW_FILES = $(shell grep -rlF mark.slow tests --include='test_*.py')
FILES_OF_T = $(shell find tests -name '$(T).py')
WORKERS = $(if $(filter-out 1,$(JOBS)),-n $(shell expr $(JOBS) + 2) --dist worksteal)
SUBMAKE = $(MAKE) --no-print-directory $(if $(findstring -j,$(MAKEFLAGS)),,-j$(JOBS))

# $(1): the variant; $(2): the value of -fsanitize=. Uses the first compiler whose smallest program also runs; the
# thread sanitizer may need fixed addresses (setarch -R).
define WITH_SANITIZER
mkdir -p build/c/$(1); echo 'int main(void) { return 0; }' > build/c/$(1)/probe.c; \
for cc in '$(CC)' gcc clang; do for wrap in '' 'setarch -R'; do \
	if $$cc -fsanitize=$(2) -o build/c/$(1)/probe build/c/$(1)/probe.c >/dev/null 2>&1 && \
		$$wrap build/c/$(1)/probe >/dev/null 2>&1; then \
		$(SUBMAKE) VARIANT=$(1) CC="$$cc" WRAP="$$wrap" run-ctests; exit $$?; fi; done; done; \
$(call LOUDLY,no compiler here builds and runs -fsanitize=$(2): the C tests did NOT run under it)
endef

SANITIZED := -O1 -fno-omit-frame-pointer -fno-sanitize-recover=all
FLAGS_plain := -O2
FLAGS_proof := -O3 -march=native -DLOGSTORE_CHECK
FLAGS_mutants := -O2
FLAGS_trail := -O2 -DLOGSTORE_CHECK -DLOGSTORE_TRAIL=2
FLAGS_asan := $(SANITIZED) -DLOGSTORE_POISON -DLOGSTORE_CHECK -fsanitize=address,undefined
FLAGS_tsan := $(SANITIZED) -DLOGSTORE_POISON -DLOGSTORE_CHECK -fsanitize=thread
FLAGS_coverage := -O0 --coverage -fprofile-update=atomic
# Warnings of gcc depend on what its optimiser finds, those of clang do not.
FLAGS_strict-gcc := -O2 -Wconversion -Werror
FLAGS_strict-clang := -O0 -Wconversion -Werror

export ASAN_OPTIONS ?= detect_leaks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS ?= print_stacktrace=1
export TSAN_OPTIONS ?= halt_on_error=1:second_deadlock_stack=1

ifeq ($(VARIANT)$(STAGE),)
.NOTPARALLEL:
endif

ifdef VARIANT

ifeq ($(VARIANT)$(EVERY),tsan)
WITHOUT_THREADS := $(shell grep -lx 'no thread was started' build/c/plain/test_*.log 2>/dev/null)
CTESTS := $(filter-out $(WITHOUT_THREADS:build/c/plain/%.log=csrc/tests/unit/%.c),$(CTESTS))
endif

OUT := build/c/$(VARIANT)
FLAGS := $(C_FLAGS) $(FLAGS_$(VARIANT))
OBJECTS := $(patsubst csrc/%.c,$(OUT)/objects/%.o,$(CORE) $(SIMULATOR))
PROGRAMS := $(CTESTS:csrc/tests/unit/%.c=$(OUT)/%)
PROOF_PROGRAMS := $(PROOFS:csrc/tests/proof/%.c=$(OUT)/%)

$(OUT)/.compiled-with: FORCE
	@mkdir -p $(OUT) $(sort $(dir $(OBJECTS))) $(OUT)/objects/consensus
	@echo '$(CC) $(FLAGS) $(CORE)' > $@.now
	@if cmp -s $@.now $@; then rm $@.now; else mv $@.now $@; fi

$(OUT)/objects/%.o: csrc/%.c $(OUT)/.compiled-with
	@$(CC) $(FLAGS) -MMD -MP -c -o $@ $<

$(OUT)/objects/logstore/%.o: logstore/%.c $(OUT)/.compiled-with
	@mkdir -p $(@D)
	@$(CC) $(FLAGS) -isystem $(PYTHON_H) $(JNI_FLAGS) -MMD -MP -c -o $@ $<

$(OUT)/objects/benchmarks/%.o: benchmarks/%.c $(OUT)/.compiled-with
	@mkdir -p $(@D)
	@$(CC) $(FLAGS) -MMD -MP -c -o $@ $<

$(OUT)/%: csrc/tests/unit/%.c $(OBJECTS) $(OUT)/.compiled-with
	@$(CC) $(FLAGS) -MMD -MP -MF $@.d -o $@ $< $(OBJECTS)

$(OUT)/%: csrc/tests/proof/%.c $(OBJECTS) $(OUT)/.compiled-with
	@$(CC) $(FLAGS) -MMD -MP -MF $@.d -o $@ $< $(OBJECTS)

# PLANTED instructions are added for every message that enters the table; the guard must detect them.
$(OUT)/instructions: csrc/tests/guard/instructions.c $(OBJECTS) $(OUT)/.compiled-with
	@$(CC) $(FLAGS) -MMD -MP -MF $@.d -o $@ $< $(OBJECTS)

$(OUT)/instructions-planted: csrc/tests/guard/instructions.c $(OBJECTS) $(OUT)/.compiled-with FORCE
	@$(CC) $(FLAGS) -DPLANTED_INSTRUCTIONS=$(PLANTED) -Wl,--wrap=table_add -o $@ $< $(OBJECTS)

$(OUT)/%.ok: csrc/%.c $(CORE_HEADERS) $(CONSENSUS_HEADERS) $(LAYOUT) .clang-tidy
	@mkdir -p $(@D)
	@clang-tidy --quiet $< -- $(C_FLAGS) $(NODES_$(VARIANT)) -isystem $(LIBRAFT)/include > $@.log 2>&1 || { cat $@.log; exit 1; }
	@touch $@

$(OUT)/logstore/%.ok: logstore/%.c $(HOT_HEADERS) $(CORE_HEADERS) .clang-tidy
	@mkdir -p $(@D)
	@clang-tidy --quiet $< -- $(C_FLAGS) $(NODES_$(VARIANT)) -isystem $(PYTHON_H) $(JNI_FLAGS) > $@.log 2>&1 || { cat $@.log; exit 1; }
	@touch $@

# Code for tests is counted as well, but is optimised, because it need not be slow. Otherwise a test program is not
# optimised, only the core and the simulator that it is linked with: compiling them took longer than running them.
# The crash states of test_relocate have no threads, and take minutes under TSan.
ifneq ($(filter coverage tsan,$(VARIANT)),)
run-test_relocate: export LOGSTORE_CRASH := 0
endif
ifeq ($(VARIANT),coverage)
$(PROGRAMS) $(filter $(OUT)/objects/tests/%.o,$(OBJECTS)): private FLAGS += -O2
else
$(PROGRAMS) $(if $(filter asan,$(VARIANT)),$(PROOF_PROGRAMS)): private FLAGS += -O0
endif

# The calls by which threads take turns, replaced in a test that chooses schedules (csrc/tests/kit/schedules.h).
SCHEDULED := pthread_create pthread_join pthread_mutex_lock pthread_mutex_trylock pthread_mutex_unlock pthread_cond_wait \
	pthread_cond_signal pthread_cond_broadcast sem_wait sem_clockwait sem_post nanosleep sched_yield
$(OUT)/test_schedules: private FLAGS += $(SCHEDULED:%=-Wl,--wrap=%)

# libraft is not ours: its warnings are not shown, and its branches are not counted.
LIBRAFT_OBJECTS := $(patsubst $(LIBRAFT)/src/%.c,$(OUT)/libraft/%.o,$(sort $(wildcard $(LIBRAFT)/src/*.c)))
ENGINE_OBJECTS := $(CONSENSUS:csrc/%.c=$(OUT)/objects/%.o) $(LIBRAFT_OBJECTS)
$(CONSENSUS:csrc/%.c=$(OUT)/objects/%.o): private FLAGS += -isystem $(LIBRAFT)/include

$(OUT)/libraft/%.o: $(LIBRAFT)/src/%.c $(LIBRAFT)/include/raft.h $(OUT)/.compiled-with
	@mkdir -p $(@D)
	@$(CC) $(filter-out -std=% -W% --coverage,$(FLAGS)) -std=gnu11 -UNDEBUG -w -I$(LIBRAFT)/include -c -o $@ $<

SIMULATED_OBJECTS := $(patsubst csrc/%.c,$(OUT)/objects/%.o,$(SIMULATED))
MODEL_OBJECTS := $(patsubst csrc/%.c,$(OUT)/objects/%.o,$(filter-out $(SIMULATED_REAL),$(SIMULATED)) csrc/replica/identity.c \
	$(filter csrc/mutants/%,$(CORE)))
REAL_OBJECTS := $(patsubst csrc/%.c,$(OUT)/objects/%.o,$(SIMULATED_REAL) $(SIMULATED_BOTH))

$(OUT)/consensus: $(MODEL_OBJECTS) $(ENGINE_OBJECTS) $(OUT)/.compiled-with
	@$(CC) $(FLAGS) -o $@ $(MODEL_OBJECTS) $(ENGINE_OBJECTS)

$(OUT)/consensus_real: $(REAL_OBJECTS) $(ENGINE_OBJECTS) $(OBJECTS) $(OUT)/.compiled-with
	@$(CC) $(FLAGS) -o $@ $(REAL_OBJECTS) $(ENGINE_OBJECTS) $(OBJECTS)

$(OUT)/bench_engine: $(OUT)/objects/benchmarks/engine.o $(ENGINE_OBJECTS) $(OUT)/.compiled-with
	@$(CC) $(FLAGS) -o $@ $< $(ENGINE_OBJECTS)

$(OUT)/test_engine_%: csrc/tests/unit/test_engine_%.c $(OBJECTS) $(ENGINE_OBJECTS) $(OUT)/.compiled-with
	@$(CC) $(FLAGS) -MMD -MP -MF $@.d -o $@ $< $(OBJECTS) $(ENGINE_OBJECTS)

.SECONDARY: $(OBJECTS) $(PROGRAMS) $(PROOF_PROGRAMS) $(ENGINE_OBJECTS) $(SIMULATED_OBJECTS)
-include $(OBJECTS:.o=.d) $(SIMULATED_OBJECTS:.o=.d) $(CONSENSUS:csrc/%.c=$(OUT)/objects/%.d) $(HOT:%.c=$(OUT)/objects/%.d) \
	$(OUT)/objects/benchmarks/engine.d $(PROGRAMS:=.d) $(PROOF_PROGRAMS:=.d)

.PHONY: made-ctests ctest-logs
made-ctests: $(PROGRAMS)

ctest-logs: $(PROGRAMS:=.log)

# Made by run-% as well, which judges it. The log of a program that died has no line about threads.
$(OUT)/%.log: $(OUT)/%
	@$(STOPPED) $(WRAP) $< > $@ 2>&1 || true

# A silent test has not passed: each must exit 0 and print "N passed, 0 failed". A hanging test is stopped after a
# time far above that of the slowest.
STOPPED := $(if $(shell command -v timeout 2>/dev/null),timeout --kill-after=10 900)

# Short runs of the proof programs in these builds; `make proof` has the long runs.
PROVE_asan := explorer explorer-timed replicas sweeps bytes history
PROVE_tsan := history
PROVE_trail := explorer explorer-timed sweeps history
SHORT_explorer := --states $(if $(filter trail,$(VARIANT)),5000,2500) --jobs 1
# Workloads 36 to 47 are the first ones with times.
SHORT_explorer-timed := --seed 36 --states 600 --jobs 1
SHORT_replicas := --runs 2 --every 16 --jobs 1
SHORT_sweeps := --seconds 8
SHORT_bytes := --seconds 8
SHORT_history := --seconds 5

.PHONY: run-ctests
run-ctests: $(CTESTS:csrc/tests/unit/%.c=run-%) $(PROVE_$(VARIANT):%=prove-%)
	@[ -n '$(PROGRAMS)' ] || { echo "logstore: csrc/tests/unit holds no test_*.c" >&2; exit 1; }
	@$(if $(WITHOUT_THREADS),echo "$(VARIANT): $(words $(WITHOUT_THREADS)) programs start no thread and are left out (EVERY=1 runs them)")

run-%: $(OUT)/% FORCE
	@if $(STOPPED) $(WRAP) $< > $<.log 2>&1 && grep -q '^[1-9][0-9]* passed, 0 failed$$' $<.log; \
		then echo "$(VARIANT): $*: $$(tail -n 1 $<.log)"; \
		else cat $<.log; echo "$(VARIANT): $* FAILED" >&2; exit 1; fi

# PROGRAM-PART is another short run of the program.
.SECONDEXPANSION:
prove-%: $(OUT)/$$(firstword $$(subst -, ,$$*)) FORCE
	@if $(STOPPED) $(WRAP) $< $(SHORT_$*) > $(OUT)/$*.log 2>&1; then echo "$(VARIANT): $*: $$(tail -n 1 $(OUT)/$*.log)"; \
		else cat $(OUT)/$*.log; echo "$(VARIANT): $* FAILED" >&2; exit 1; fi

endif
