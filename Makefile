# Both targets set up $(VENV) themselves, once. PYTHON=python3.12 chooses its Python, ARGS="..." passes arguments on.
PYTHON ?= python3
VENV ?= .venv
READY := $(VENV)/.ready
OLD := PYTHON: found Python %d.%d, allowed: 3.11 or later; run make PYTHON=<path of one>

.PHONY: train test
train: $(READY)
	$(VENV)/bin/python -m sharder.train $(ARGS)

test: $(READY)
	$(VENV)/bin/python -m pytest $(ARGS)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; v = sys.version_info[:2]; sys.exit(None if v >= (3, 11) else '$(OLD)' % v)"
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@
