//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// testKilledReplica kills a replica while it streams. Its streams must end so that
// clients see that they are not whole, the other's must not notice, and requests
// must go on being answered.
func testKilledReplica(t *testing.T, s *stage) {
	if s.run == "" {
		t.Skip("the replicas of VLLM_URLS are not this test's to kill")
	}
	const streams, tokens = 20, 400
	victim, other := s.urls[0], s.urls[1]

	type outcome struct {
		*answer
		err   error
		ended time.Time
	}
	outcomes := make([]outcome, streams)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var started atomic.Int32
	var running sync.WaitGroup
	for i := range outcomes {
		running.Go(func() {
			a, err := send(ctx, s.clients, "/v1/chat/completions", object{
				"model": model, "stream": true, "temperature": 0, "max_tokens": tokens, "ignore_eos": true,
				"messages": []object{message("user", words(20))},
			}, func(*answer) { started.Add(1) })
			outcomes[i] = outcome{a, err, time.Now()}
		})
	}
	eventually(t, time.Minute, "all streams to have begun", func() error {
		if n := started.Load(); n < streams {
			return fmt.Errorf("%d of %d have", n, streams)
		}
		return nil
	})
	text, err := os.ReadFile(filepath.Join(s.run, strings.TrimPrefix(victim, "http://127.0.0.1:")+".pid"))
	if err != nil {
		t.Fatal(err)
	}
	group, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(-group, syscall.SIGKILL); err != nil {
		t.Fatalf("kill the replica's processes: %v", err)
	}
	killed := time.Now()

	for i := range 10 {
		a, err := send(ctx, s.clients, "/v1/chat/completions", object{"model": model, "max_tokens": 2, "messages": []object{message("user", words(20))}}, nil)
		switch {
		case err != nil:
			t.Errorf("request %d after the kill, at %v: %v", i+1, time.Since(killed).Round(time.Millisecond), err)
		case a.replica != id(other):
			t.Errorf("request %d after the kill was answered by %s", i+1, a.replica)
		}
		if status, err := ready(s.admin); err != nil || status != http.StatusOK {
			t.Errorf("/readyz after the kill: %d, %v", status, err)
		}
	}
	eventually(t, 10*time.Second, "the metric to show it", func() error {
		up, err := s.up(victim)
		if err == nil && up {
			err = errors.New("warmpath_replica_up of the killed replica is 1")
		}
		return err
	})
	shown := time.Since(killed)
	if up, err := s.up(other); !up {
		t.Errorf("warmpath_replica_up of the other replica: %v, %v", up, err)
	}
	running.Wait()

	var cut, events, broken, whole int
	for i, o := range outcomes {
		switch {
		case o.replica == id(victim):
			cut++
			if o.failure != "" {
				events++
			} else if o.err != nil && !errors.Is(o.err, context.DeadlineExceeded) {
				broken++
			}
			if o.done || o.failure == "" && (o.err == nil || errors.Is(o.err, context.DeadlineExceeded)) {
				t.Errorf("stream %d of the killed replica did not end visibly: %d bytes of text, finish %q, [DONE] %v, error event %q, error %v", i, len(o.text), o.finish, o.done, o.failure, o.err)
			}
			if d := o.ended.Sub(killed); d > 5*time.Second {
				t.Errorf("stream %d of the killed replica ended %v after it", i, d)
			}
		case o.err != nil || !o.done || o.finish != "length" || o.failure != "":
			t.Errorf("stream %d of the other replica is not whole: finish %q, [DONE] %v, error event %q, error %v", i, o.finish, o.done, o.failure, o.err)
		default:
			whole++
		}
	}
	t.Logf("of %d streams %d were cut (%d with an error event, %d by the connection), %d are whole; the metric showed it after %v", streams, cut, events, broken, whole, shown.Round(100*time.Millisecond))
	if cut == 0 {
		t.Error("no stream ran on the killed replica: nothing was tested")
	}
}

func ready(admin string) (int, error) {
	resp, err := http.Get(admin + "/readyz")
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}
