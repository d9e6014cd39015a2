# Two commands: `make demo` and `make test`. Each does all the set-up it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PIP    := --quiet --constraint constraints.txt

.PHONY: demo test lint format unit wheel clean

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "covprop needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP) --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/python -m covprop demo

test: lint unit wheel

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

unit: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q

# The built wheel must install and run alone, in an environment that has never seen the sources.
wheel: $(READY)
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/python -m pip install $(PIP) build/wheel/*.whl
	cd build/wheel && venv/bin/python -I ../../tests/wheel_smoke.py
	rm -rf build/wheel

clean:
	rm -rf $(VENV) build dist runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
