# Both targets set up .venv themselves, once; PYTHON=python3.12 chooses another Python to make it from.
PYTHON ?= python3
READY := .venv/.ready

.PHONY: train test
train: $(READY)
	.venv/bin/python -m sharder.train $(ARGS)

test: $(READY)
	.venv/bin/python -m pytest $(ARGS)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@
