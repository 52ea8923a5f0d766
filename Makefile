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

.PHONY: help build run test lint e2e chaos bench lab fuzz clean

help: ## this list
	@sed -n 's/^\([a-z0-9]*\):.*## /\1\t/p' Makefile | expand -t 8

build: ## bin/gateway, bin/mockvllm, bin/bench and bin/modelcache
	$(GO) build -trimpath -o bin/ ./cmd/...

run: build ## a gateway over mock replicas, or over REPLICAS
	bin/gateway -listen $(LISTEN) -admin $(ADMIN) $(if $(REPLICAS),$(foreach url,$(REPLICAS),-replica $(url)),-demo 3)

test: ## every test, with the race detector, and each fuzz test for 2 s
	$(GO) vet ./...
	$(if $(RACE),,@echo "no C compiler: testing without the race detector")
	@$(GO) test $(RACE) -run '^$$' ./... >/dev/null # builds on all cores; then one after another, since some of them measure time
	$(GO) test $(RACE) -p 1 ./...
	$(if $(RACE),$(GO) test ./internal/lab)
	$(if $(RACE),$(GO) test -run Allocates ./internal/gateway)
	@$(MAKE) --no-print-directory fuzz FUZZ=2s

lint: ## golangci-lint; downloads it on first use
	$(GOLANGCI) run ./...
	$(GOLANGCI) run --build-tags e2e ./test/...

e2e: ## against real vLLM replicas on this machine's CPU, real Redis servers, a Prometheus and a browser; installs them on first use (8 GB); pictures in build/
	test/vllm/setup.sh
	command -v redis-server || apt-get install -y redis-server
	WARMPATH_NEED_REDIS=1 $(GO) test -count=1 ./internal/share
	WARMPATH_NEED_REDIS=1 $(GO) test -tags e2e -count=1 -v -timeout 25m ./test/e2e/

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
	rm -rf bin
