package chaos

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// pair is two gateways of which one is replaced at a time.
type pair struct {
	mu sync.Mutex
	of []*process
}

func (p *pair) all() []*process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*process(nil), p.of...)
}

func (p *pair) replace(i int, by *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[i] = by
}

// TestRollingRestartFailsNoRequest replaces two gateways behind a load balancer, one
// after the other and under load, as a deployment does.
func TestRollingRestartFailsNoRequest(t *testing.T) {
	binary := build(t)
	gatewayBinary := buildGateway(t)
	args := []string{"-listen", "127.0.0.1:0", "-admin", "127.0.0.1:0", "-drain-delay", "700ms", "-drain-timeout", "10s", "-max-wait", "0"}
	for range 2 {
		args = append(args, "-replica", startNode(t, binary).url())
	}
	gateways := &pair{of: []*process{run(t, gatewayBinary, args...), run(t, gatewayBinary, args...)}}
	b := newBalancer(t)
	stopWatch := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { b.watch(gateways.all, stopWatch) })
	defer watching.Wait()
	defer close(stopWatch)
	eventually(t, 20*time.Second, "both are ready", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.behind) == 2
	})

	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var whole, failed atomic.Int32
	for i := range 16 {
		running.Go(func() {
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport}
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for ctx.Err() == nil {
				// One in eight is a stream of more than a second.
				tokens := 10
				if random.IntN(8) == 0 {
					tokens = 600
				}
				if err := askFor(client, "http://"+b.listener.Addr().String(), random.IntN(20), tokens); err != nil {
					if failed.Add(1) < 10 {
						t.Error(err)
					}
					continue
				}
				whole.Add(1)
			}
		})
	}
	for i := range 2 {
		old := gateways.all()[i]
		began := time.Now()
		_ = old.cmd.Process.Signal(syscall.SIGTERM)
		eventually(t, 500*time.Millisecond, "readiness fails first", func() bool { return !old.ready() })
		select {
		case err := <-old.ended:
			if err != nil {
				t.Errorf("exit: %v\n%s", err, old.log)
			}
		case <-time.After(15 * time.Second):
			t.Fatal("it does not end")
		}
		if took := time.Since(began); took < 700*time.Millisecond {
			t.Errorf("it ended after %v: the delay was not kept", took)
		}
		gateways.replace(i, run(t, gatewayBinary, args...))
		eventually(t, 20*time.Second, "both are ready", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return len(b.behind) == 2
		})
	}
	stop()
	running.Wait()
	t.Logf("%d requests while two gateways were replaced, %d failed", whole.Load(), failed.Load())
	if whole.Load() < 100 {
		t.Error("too few requests to tell")
	}
}

// askFor makes one streamed request and wants all of its answer.
func askFor(c *http.Client, url string, prompt, tokens int) error {
	body := fmt.Sprintf(`{"model":"mock","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"question %d"}]}`, tokens, prompt)
	resp, err := c.Post(url+"/v1/chat/completions", "application/json", bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
		return fmt.Errorf("status %d, %w, ends with %q", resp.StatusCode, err, text[max(0, len(text)-100):])
	}
	return nil
}

// TestASecondSignalEndsAtOnce.
func TestASecondSignalEndsAtOnce(t *testing.T) {
	g := run(t, buildGateway(t), "-listen", "127.0.0.1:0", "-admin", "127.0.0.1:0", "-replica", "http://127.0.0.1:1", "-drain-delay", "1m")
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	time.Sleep(300 * time.Millisecond)
	select {
	case err := <-g.ended:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-g.ended:
		if err == nil {
			t.Error("nobody is told that it did not end as it should")
		}
	case <-time.After(5 * time.Second):
		t.Error("it does not end")
	}
}
