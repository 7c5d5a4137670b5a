# Sets itself up on a machine with Python 3.11 and Java 17; `make` lists the targets.

SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help demo mysql demo-hybrid demo-temporal demo-cluster test slow test-browser test-prometheus test-aws test-cluster test-sparks test-plain test-fast faults torture fuzz soak check docs dist bench clean setup java

VENV := .venv
PY := $(CURDIR)/$(VENV)/bin/python
PACKAGES := $(VENV)/packages.stamp
PREPARED := $(VENV)/prepared.stamp
CLASSES := $(VENV)/classes.stamp
LOG := $(VENV)/setup.log
# Clean environments with the built wheel: for a smoke test, and for the archive that spark-submit takes.
CLEAN := $(VENV)/clean
PACKED := $(VENV)/packed
SMOKE := $(VENV)/smoke.stamp
# What the tests need from other package managers. Prometheus is only unpacked: Debian would start it as a service.
TOOLS := $(CURDIR)/$(VENV)/tools
AXE := $(TOOLS)/node_modules/axe-core/axe.min.js
PROMETHEUS := $(TOOLS)/prometheus/usr/bin
# Extras of the wheel in them. Spark itself does not go into the archive.
EXTRAS ?= mysql,postgres,kafka,avro,files,delta,iceberg,sql,cli

# Spark starts its Python workers with this; by default it would take `python3` from PATH, which lacks the packages.
export PYSPARK_PYTHON := $(PY)
export PYSPARK_DRIVER_PYTHON := $(PY)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Images for containers often set it. Each process that Spark starts would then compile this project's modules again.
unexport PYTHONDONTWRITEBYTECODE

# Test files run side by side, as most of their time is waiting for a commit or for the start of a process; in the order of
# tests/conftest.py, since by default those with few tests, which take longest here, would come last.
WORKERS ?= 2

# Other versions of Spark, on which the sources alone are tested.
SPARKS := 4.0 4.1 4.3

comma := ,

# $(call flag,--name,value): nothing when the value is empty.
flag = $(if $(2),$(1) '$(2)')

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' $(MAKEFILE_LIST) | \
		awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

demo: $(PREPARED) java ## MySQL to Delta through a backlog [ROWS= INTERVAL= INTERVAL_DURING_BACKLOG= SECONDS=]
	@$(PY) -m examples.demo $(call flag,--rows,$(ROWS)) $(call flag,--interval,$(INTERVAL)) \
		$(call flag,--interval-during-backlog,$(INTERVAL_DURING_BACKLOG)) $(call flag,--seconds,$(SECONDS))

mysql: $(PACKAGES) ## a MySQL server with a table of orders, for a try; Ctrl-C ends it [PORT=]
	@$(PY) -m servers mysql $(PORT)

demo-hybrid: $(PREPARED) java ## a year of files, then Kafka, to sums in Delta [ROWS= INTERVAL= INTERVAL_DURING_BACKLOG= SECONDS=]
	@$(PY) -m examples.demo_hybrid $(call flag,--rows,$(ROWS)) $(call flag,--interval,$(INTERVAL)) \
		$(call flag,--interval-during-backlog,$(INTERVAL_DURING_BACKLOG)) $(call flag,--seconds,$(SECONDS))

demo-temporal: $(PREPARED) java ## clicks that wait for a MySQL table, then join with it [ROWS= SECONDS= SQL=1]
	@$(PY) -m examples.temporal_join $(call flag,--rows,$(ROWS)) $(call flag,--seconds,$(SECONDS)) $(if $(SQL),--sql)

demo-cluster: $(PREPARED) java ## both on a standalone cluster whose executors and drivers are killed [ROWS=]
	@$(PY) -m examples.demo_cluster $(call flag,--rows,$(ROWS))

test: $(CLASSES) java ## the tests, or some: make test ARGS="-k name"
	@$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

slow: $(CLASSES) java ## the tests that take long, kills and repeats on MariaDB among them; CI runs them too [ARGS=]
	@$(PY) -m pytest -m 'slow and not grid' -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-fast: $(PACKAGES) ## the tests that start neither Spark nor a server: under two minutes [ARGS=]
	@$(PY) -m pytest -m 'not slow and not grid and not process and not outside' -n $(WORKERS) --dist loadfile $(ARGS)

test-plain: $(CLASSES) java ## integration and kill tests without Spark's internals, on its public API
	@BACKLOG_SPARK_INTERNALS=off $(PY) -m pytest -m 'not grid' -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
		tests/integration tests/faults $(ARGS)

test-cluster: $(CLASSES) java ## a standalone cluster: all kills there and on S3, and the integration tests [ARGS=]
	@$(PY) -m pytest --cluster -m 'grid or not grid' tests/cluster tests/docker tests/integration \
		tests/faults/test_kill_s3.py tests/faults/test_two_drivers_s3.py $(ARGS)

test-sparks: $(PREPARED) java $(SPARKS:%=$(VENV)/spark-%.stamp) ## the sources on Spark 4.0, 4.1 and 4.3, and whole queries on 4.3, in environments of their own [ARGS=]
	@$(PY) -m pytest -m sparks tests/sparks $(ARGS)

faults: export FAULTS_PAGE := $(CURDIR)/docs/proof
faults: export FAULTS_ARGS := $(ARGS)
faults: $(CLASSES) java ## the large grids of faults and random queries, for hours, and docs/proof/faults.md [ARGS="-k 'hybrid and keyed'"]
	@$(PY) -m pytest -m grid $(ARGS)

test-browser: $(CLASSES) java ## the report page in headless Chromium with axe-core, live; progress in Jupyter (installs chromium on Debian)
	@$(call debian,chromedriver,chromium chromium-driver)
	@test -f $(AXE) || { mkdir -p $(TOOLS) && cd $(TOOLS) && npm install --silent --no-save axe-core@4.14.1; }
	@$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[browser]'
	@AXE=$(AXE) SHOTS=$(TOOLS) $(PY) -m pytest -m outside tests/tools/test_browser.py tests/tools/test_notebook.py $(ARGS)
	@echo "screenshots: $(TOOLS)/*.png"

test-prometheus: $(PACKAGES) ## metrics, dashboard and alert rules with Prometheus itself, conf/ by its schemas (installs on Debian)
	@$(call debian,systemd-analyze,systemd)
	@test -x $(PROMETHEUS)/promtool || { mkdir -p $(TOOLS) && cd $(TOOLS) && apt-get download -qq prometheus && \
		dpkg -x prometheus_*.deb prometheus; }
	@$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[grafana]'
	@PROMETHEUS=$(PROMETHEUS) $(PY) -m pytest -m outside tests/tools/test_prometheus.py $(ARGS)

test-aws: $(PACKAGES) ## tokens for Kafka that AWS's library signs, without a network [ARGS=]
	@$(PY) -m pip install --quiet --upgrade --target $(TOOLS)/aws \
		--constraint constraints.txt aws-msk-iam-sasl-signer-python
	@PYTHONPATH=$(TOOLS)/aws $(PY) -m pytest -m outside tests/connectors/hybrid/kafka/test_tokens.py $(ARGS)

torture: $(PREPARED) java ## mysql_cdc with writers, ALTER TABLE and kills at the same time [SEED= MINUTES=]
	@$(PY) -m tests.torture $(call flag,--seed,$(SEED)) $(call flag,--minutes,$(MINUTES))

fuzz: $(PREPARED) java ## bad input of every kind, millions of them; writes docs/proof/fuzz.md [SECONDS= SEED= KIND= NUMBER=]
	@$(PY) -m tests.fuzz $(call flag,--seconds,$(SECONDS)) $(call flag,--seed,$(SEED)) $(call flag,--kind,$(KIND)) \
		$(call flag,--number,$(NUMBER))

soak: $(PREPARED) java ## two queries under load, faults and kills for an hour; writes docs/proof/soak.md [MINUTES= SEED= CHANGES= RECORDS=]
	@$(PY) -m tests.soak $(call flag,--minutes,$(MINUTES)) $(call flag,--seed,$(SEED)) \
		$(call flag,--changes,$(CHANGES)) $(call flag,--records,$(RECORDS))

check: $(PACKAGES) ## lint, format, types, and a smoke test of the built wheel in a clean environment
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy backlog_spark servers
	@$(MAKE) $(SMOKE)

docs: $(PACKAGES) ## the documentation site in site/; every warning is an error
	@$(PY) -m docs.generate
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet
	@echo "open site/index.html"

dist: $(PACKAGES) ## wheel and sdist; a zip for --py-files; an archive of an environment for --archives [EXTRAS=]
	@$(call build)
	@cd dist && wheel=$$(echo *.whl) && cp "$$wheel" "$${wheel%-py3-none-any.whl}-py-files.zip"
	@rm -rf $(PACKED)
	@$(call install,$(PACKED),$(EXTRAS))
	@$(PY) -m venv_pack --quiet --force --prefix $(PACKED) --exclude '*/site-packages/pyspark/*' \
		--output dist/backlog_spark-environment.tar.gz
	@ls -1 dist/*

bench: $(PREPARED) java ## side by side with its peers: make bench CASE=snapshot [ROWS= KEYS= RUNS=] [KIND= RATE= SECONDS= INTERVAL=] [EVENTS= QUERIES= PEERS= WRITE=1]
	@test -n '$(CASE)' -a -f 'benchmarks/$(CASE).py' || { \
		echo "error: no benchmark '$(CASE)'; CASE is one of:" \
			$$(grep -l '^__name__\|__main__' benchmarks/*.py | sed 's/.*\/\(.*\)\.py/\1/') >&2; exit 1; }
	@$(PY) -m benchmarks.$(CASE) $(call flag,--rows,$(ROWS)) $(call flag,--keys,$(KEYS)) $(call flag,--runs,$(RUNS)) \
		$(call flag,--kind,$(KIND)) $(call flag,--rate,$(RATE)) $(call flag,--seconds,$(SECONDS)) \
		$(call flag,--interval,$(INTERVAL)) \
		$(call flag,--events,$(EVENTS)) $(call flag,--queries,$(QUERIES)) $(call flag,--peers,$(PEERS)) $(if $(WRITE),--write)

# $(call debian,command,packages)
debian = command -v $(1) >/dev/null || { apt-get update && apt-get install --yes --no-install-recommends $(2); } >$(LOG) 2>&1 || { \
	echo "error: $(1) is missing, and apt-get cannot install $(2) (log: $(LOG))" >&2; exit 1; }

# build makes the wheel from the sdist, so a file that the sdist lacks shows here.
build = rm -rf build dist && $(PY) -m build --no-isolation --outdir dist . >$(LOG) 2>&1 || { \
	echo "error: no distributions: $$(grep . $(LOG) | tail -n 1) (log: $(LOG))" >&2; exit 1; }

# $(call install,environment,extras): the wheel and what it needs. The second command replaces an older build of the
# same version.
install = { test -x $(1)/bin/python || "$$($(PY) -c 'import sys; print(sys._base_executable)')" -m venv $(1); } && \
	$(1)/bin/python -m pip install --quiet --constraint constraints.txt "$$(ls dist/*.whl)[$(2)]" >$(LOG) 2>&1 && \
	$(1)/bin/python -m pip install --quiet --no-deps --force-reinstall dist/*.whl >>$(LOG) 2>&1 && \
	$(1)/bin/python -m pip check >>$(LOG) || { \
	echo "error: the wheel cannot be installed: $$({ grep 'ERROR: ' $(LOG) || grep . $(LOG); } | tail -n 1) (log: $(LOG))" >&2; \
	exit 1; }

$(SMOKE): $(PACKAGES) tests/smoke.py MANIFEST.in README.md $(shell find backlog_spark connectors pyspark_*.py -name '*.py') | java
	@$(call build)
	@$(call install,$(CLEAN),spark$(comma)$(EXTRAS))
	@$(CLEAN)/bin/python -I tests/smoke.py
	@touch $@

clean: ## remove the virtual environment, build products and caches of this directory
	@rm -rf $(VENV) build dist site *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@rm -rf spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: $(PREPARED)

# Asked for at every run, as it costs nothing next to a Spark session and its absence is otherwise hard to read.
java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	banner=$$("$$java" -version 2>&1) || { \
		echo "error: Java 17 or newer is needed and '$$java' does not run. Install OpenJDK 17 or set JAVA_HOME." >&2; \
		exit 1; }; \
	found=$$(printf '%s\n' "$$banner" | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1); \
	test "$${found:-0}" -ge 17 || { \
		echo "error: Java 17 or newer is needed and '$$java' is $${found:-unknown}. Install OpenJDK 17 or set JAVA_HOME." >&2; \
		exit 1; }

# Java is looked for first: a missing one should not show after a download of 450 MB.
$(PREPARED): $(PACKAGES) | java
	@echo "setup 3/3: jars, MySQL, MariaDB and Kafka (downloads of 385 MB)"
	@$(PY) -m servers prepare
	@touch $@

# Half of a JVM's start, of which the tests have a hundred.
$(CLASSES): $(PREPARED) tests/classes.py
	@echo "setup for tests: an archive of Spark's classes"
	@$(PY) -m tests.classes
	@touch $@

# The packages of the sources in the versions of this directory's environment, with another PySpark.
$(VENV)/spark-%.stamp: $(PACKAGES)
	@echo "setup for tests: an environment with PySpark $* (a download of 450 MB)"
	@$(PY) -m venv --clear $(VENV)/spark-$*
	@$(PY) -m pip freeze --exclude-editable | \
		grep -iE '^(confluent-kafka|cryptography|fsspec|mysql-replication|numpy|pandas|protobuf|pyarrow|pymysql|sqlglot)==' >$(VENV)/spark-$*.txt
	@$(VENV)/spark-$*/bin/python -m pip install --quiet 'pyspark==$*.*' -r $(VENV)/spark-$*.txt >$(VENV)/spark-$*.log 2>&1 || { \
		echo "error: pip could not install PySpark $* (log: $(VENV)/spark-$*.log)" >&2; exit 1; }
	@touch $@

$(PACKAGES): setup.cfg pyproject.toml constraints.txt | $(if $(filter test-fast,$(MAKECMDGOALS)),,java)
	@found=; for candidate in $(PYTHON) python3.11 python3; do \
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			found=$$candidate; break; fi; done; \
	test -n "$$found" || { \
		echo "error: Python 3.11 or newer is needed, found $$(python3 --version 2>/dev/null || echo none). Install it or set PYTHON=/path/to/python3.11." >&2; \
		exit 1; }; \
	echo "setup 1/3: virtual environment in $(VENV) ($$("$$found" --version))"; \
	mkdir -p $(VENV); \
	$(PY) -m pip --version >/dev/null 2>&1 || "$$found" -m venv --clear $(VENV) >$(VENV).log 2>&1 || { \
		echo "error: cannot create $(VENV): $$(grep . $(VENV).log | head -n 1) (on Debian: apt-get install python3-venv)" >&2; \
		rm -rf $(VENV) $(VENV).log; exit 1; }; \
	rm -f $(VENV).log
	@echo "setup 2/3: Python packages (PySpark is a download of 450 MB)"
	@$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[servers,cli,metrics,test,dev]' >$(LOG) 2>&1 || { \
		echo "error: pip could not install the packages: $$( \
			{ grep 'ERROR: ' $(LOG) || grep . $(LOG); } | sed 's/^ *//' | tail -n 1). Is the package index reachable? (log: $(LOG))" >&2; \
		exit 1; }
	@touch $@
