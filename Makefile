# make run    a gateway on :8080 over three mock replicas, or REPLICAS="url url" make run
# make test   every test; needs Go and nothing else
# make help   the rest

GO      ?= go
LISTEN  ?= :8080
ADMIN   ?= 127.0.0.1:9090
# The race detector needs a C compiler; without one the tests run without it.
RACE    ?= $(if $(shell command -v "$$($(GO) env CC)" 2>/dev/null),-race)
GOLANGCI ?= $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZ    ?= 10s
# Two seeds are what docs/lab.md shows; a third takes half as long again.
LABFLAGS ?= -seeds 2
CHAOS   ?= 2m

# From git, for archives and images are built of what git knows.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  = -s -w -X main.version=$(VERSION)
TARGETS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
IMAGE   ?= warmpath/warmpath
MAX_MB   = 60

.PHONY: help build run test chart lint e2e kube chaos bench lab fuzz image release sbom clean

help: ## this list
	@sed -n 's/^\([a-z0-9]*\):.*## /\1\t/p' Makefile | expand -t 8

build: ## bin/gateway, bin/mockvllm, bin/bench and bin/modelcache
	$(GO) build -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/ ./cmd/...

run: build ## a gateway over mock replicas, or over REPLICAS
	bin/gateway -listen $(LISTEN) -admin $(ADMIN) $(if $(REPLICAS),$(foreach url,$(REPLICAS),-replica $(url)),-demo 3)

test: ## every test, with the race detector, and each fuzz test for 2 s
	$(GO) vet ./...
	$(if $(RACE),,@echo "no C compiler: testing without the race detector")
	@$(GO) test $(RACE) -run '^$$' ./... >/dev/null # builds on all cores; then one after another, since some of them measure time
	$(GO) test $(RACE) -p 1 ./...
	$(if $(RACE),$(GO) test ./internal/lab ./internal/socket ./internal/upstream)
	$(if $(RACE),$(GO) test -run Allocates ./internal/gateway)
	@$(MAKE) --no-print-directory fuzz FUZZ=2s

chart: ## the Helm chart, rendered for six sets of values and checked against Kubernetes' types and schemas; the compose file
	@mkdir -p build/chart
	cd test/deploy && RENDERED=$(CURDIR)/build/chart $(GO) test -vet=off -count=1 ./... # lint vets it
	@test -x build/schemas/bin/kubernetes-validate || { python3 -m venv build/schemas && build/schemas/bin/pip install -q kubernetes-validate==1.37.0; }
	build/schemas/bin/python test/deploy/schemas.py build/chart

lint: ## golangci-lint, and both go.mod; downloads what it needs on first use
	$(GOLANGCI) run ./...
	$(GOLANGCI) run --build-tags e2e ./test/...
	cd test/deploy && $(GOLANGCI) run ./...
	$(GO) mod tidy -diff
	cd test/deploy && $(GO) mod tidy -diff # it follows the gateway's: see what is required there

image: ## a container image for this machine's architecture
	docker build --build-arg VERSION=$(VERSION) -t $(IMAGE):$(VERSION) .

# The same commit and toolchain give the same bytes: no paths, no times, no owners.
release: ## dist/: an archive for each of TARGETS, with checksums
	@rm -rf dist && mkdir -p dist
	@set -e; for target in $(TARGETS); do os=$${target%/*} arch=$${target#*/}; name=warmpath-$(VERSION)-$$os-$$arch; echo $$name; \
	  mkdir -p dist/$$name; \
	  CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch $(GO) build -trimpath -buildvcs=false -ldflags "$(LDFLAGS)" -o dist/$$name/ ./cmd/...; \
	  for f in dist/$$name/*; do mb=$$(( $$(wc -c < $$f) / 1000000 )); [ $$mb -le $(MAX_MB) ] || { echo "$$f has $$mb MB, more than $(MAX_MB)"; exit 1; }; done; \
	  cp *.md LICENSE dist/$$name/; cp -r deploy docs examples dist/$$name/; \
	  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w -C dist -cf - $$name | gzip -9n > dist/$$name.tar.gz; \
	  rm -r dist/$$name; done
	@cd dist && sha256sum *.tar.gz > SHA256SUMS && cat SHA256SUMS

sbom: ## dist/: what the archives are made of, with licences (CycloneDX)
	@mkdir -p dist
	GOFLAGS=-mod=mod $(GO) run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0 mod -type application -json -licenses -noserial -output dist/warmpath-$(VERSION).cdx.json .

e2e: ## against real vLLM replicas on this machine's CPU, real Redis servers, a Prometheus and a browser; installs them on first use (8 GB); pictures in build/
	test/vllm/setup.sh
	command -v redis-server || apt-get install -y redis-server
	WARMPATH_NEED_REDIS=1 $(GO) test -count=1 ./internal/share
	WARMPATH_NEED_REDIS=1 $(GO) test -count=1 -v -run RedisInTrouble/DEBUG ./internal/gateway -trouble 20s # without /DEBUG: all nine, four minutes
	WARMPATH_NEED_REDIS=1 $(GO) test -tags e2e -count=1 -v -timeout 25m ./test/e2e/

kube: ## discovery against a real API server of Kubernetes over etcd; builds the one on first use (five minutes at least, 4 GB) and installs the other
	test/kube/setup.sh
	command -v etcd || apt-get install -y etcd-server
	$(GO) test -tags e2e -count=1 -v -run '^TestKubernetes' ./test/e2e/

chaos: ## replicas that break and clients that misbehave, for CHAOS=2m; then restarts and 2,000 streams
	$(GO) test -count=1 -v -timeout 20m ./test/chaos -chaos $(CHAOS)

bench: ## the benchmarks of the request path
	$(GO) test -run '^$$' -bench . -benchmem ./internal/...

lab: ## docs/lab.md and its pictures again; TRACE=mooncake_conversation.jsonl.gz adds the trace (kvcache-ai/Mooncake, Apache-2.0)
	$(GO) build -trimpath -o bin/ ./cmd/bench
	GOGC=400 bin/bench lab -out docs $(if $(TRACE),-trace $(TRACE)) $(LABFLAGS)

# A second run tells the end of the time, which Go sometimes takes for a failure, from
# an input that was found: that is kept in testdata and fails again.
fuzz: ## each fuzz test for FUZZ=10s
	@for f in $$(grep -rho --include='*_test.go' '^func Fuzz[A-Za-z]*' internal | sed 's/func //' | sort -u); do \
	  pkg=$$(grep -rl --include='*_test.go' "^func $$f(" internal | head -1 | xargs dirname); \
	  echo "$$pkg $$f"; fuzz="$(GO) test -run ^Fuzz -fuzz ^$$f\$$ -fuzztime $(FUZZ) ./$$pkg"; $$fuzz || $$fuzz || exit 1; \
	done

clean: ## removes what build made
	rm -rf bin build dist
