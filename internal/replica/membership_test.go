package replica

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// scaled is a pool over a file of replicas, in a bubble of synctest. Who answers, and
// with which start time, is in up.
type scaled struct {
	*Pool
	t      *testing.T
	path   string
	mu     sync.Mutex
	up     map[string]string
	page   string
	events []string
	log    bytes.Buffer
}

func (s *scaled) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	start, ok := s.up[r.URL.Host]
	if !ok {
		return nil, fmt.Errorf("nobody is at %s", r.URL.Host)
	}
	body := ""
	switch r.URL.Path {
	case "/v1/models":
		body = models("m")
	case "/metrics":
		body = set(s.page, "process_start_time_seconds", start)
		if start == "" {
			return &http.Response{StatusCode: 404, Body: http.NoBody, Request: r}, nil
		}
	}
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// scale runs f over a pool whose file names a, b and c, which are up.
func scale(t *testing.T, f func(*scaled)) {
	path := filepath.Join(t.TempDir(), "replicas")
	synctest.Test(t, func(t *testing.T) {
		s := &scaled{t: t, path: path, page: page(t), up: map[string]string{"a:1": "1", "b:1": "1", "c:1": "1"}}
		s.name("a b c")
		cfg := DefaultConfig()
		cfg.URLs = []string{"file:" + path}
		p, err := New(cfg, slog.New(slog.NewTextHandler(&s.log, nil)), func(e Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if word, ok := map[Kind]string{Told: "told", Emptied: "emptied", Gone: "gone", Unwell: "unwell"}[e.Kind]; ok {
				s.events = append(s.events, strings.TrimSuffix(e.Replica.ID, ":1")+" "+word)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		p.client.Transport = s
		s.Pool = p
		if p.Set().Complete || len(p.Set().Replicas) > 0 || p.Ready() || p.Set().Model("") != nil {
			t.Error("nothing is discovered yet, but the set says", p.Set())
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { p.Run(ctx); close(done) }()
		s.pass(time.Second)
		f(s)
		cancel()
		<-done
	})
}

// name makes the file name replicas.
func (s *scaled) name(names string) {
	s.t.Helper()
	text := ""
	for n := range strings.FieldsSeq(names) {
		text += "http://" + n + ":1\n"
	}
	if err := os.WriteFile(s.path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scaled) answers(host, start string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up[host+":1"] = start; start == "none" {
		delete(s.up, host+":1")
	}
}

func (s *scaled) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// want checks the set, as "a 0, b 1 leaving": names, slots and what is not ready.
func (s *scaled) want(what, want string) {
	s.t.Helper()
	var list []string
	for _, r := range s.Set().Replicas {
		text := fmt.Sprintf("%s %d", strings.TrimSuffix(r.ID, ":1"), r.Slot)
		if state := r.State(); state != "ready" {
			text += " " + state
		}
		if r.Ready() != (r.State() == "ready") {
			text += " at odds"
		}
		list = append(list, text)
	}
	if got := strings.Join(list, ", "); got != want {
		s.t.Errorf("%s: %s, want %s", what, got, want)
	}
}

func (s *scaled) wantEvents(want string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := strings.Join(s.events, ", "); got != want {
		s.t.Errorf("events %q, want %q", got, want)
	}
	s.events = nil
}

func (s *scaled) find(name string) *Replica {
	s.t.Helper()
	r := s.Replica(name + ":1")
	if r == nil {
		s.t.Fatalf("there is no replica %s", name)
	}
	return r
}

func TestReplicasJoinAndLeave(t *testing.T) {
	scale(t, func(s *scaled) {
		s.want("at the start", "a 0, b 1, c 2")
		if !s.Set().Complete || len(s.Set().Model("m").Replicas) != 3 {
			t.Error("the set is", s.Set())
		}
		s.events = nil // in any order
		b := s.find("b")
		b.Hold()

		s.answers("d", "none")
		s.name("a d c")
		s.pass(2 * time.Second)
		s.want("d is named, but does not answer", "a 0, c 2, d 3 new, b 1 leaving")
		if b.LastResort() || len(s.Set().Model("m").Replicas) != 2 || len(s.Set().Any().Replicas) != 3 || s.Set().Complete {
			t.Error("one that leaves counts, or one that was not asked does not:", s.Set())
		}
		s.answers("d", "1")
		s.pass(3 * time.Second)
		s.want("it answers", "a 0, c 2, d 3, b 1 leaving")

		s.pass(leaveGrace)
		s.want("a request is under way at b", "a 0, c 2, d 3, b 1 leaving")
		s.answers("b", "none")
		s.pass(5 * time.Second)
		if !b.Lost() {
			t.Error("what waits at one that is gone does not move")
		}
		s.wantEvents("d told")
		b.Release()
		s.pass(2 * time.Second)
		s.want("it is over", "a 0, c 2, d 3")
		s.wantEvents("b gone")
		if !b.Gone() || b.Ready() || s.Replica("b:1") != nil {
			t.Error("b is not gone")
		}

		s.answers("e", "1")
		s.answers("b", "1")
		s.name("a b c d e")
		s.pass(2 * time.Second)
		s.want("the slot is free again", "a 0, b 1, c 2, d 3, e 4")
		if again := s.find("b"); again == b || again.Hash != b.Hash || again.Facts().Blocks == 0 {
			t.Error("b is not new, or not as others know it")
		}
	})
}

func TestALongRequestDoesNotKeepASlotForEver(t *testing.T) {
	scale(t, func(s *scaled) {
		s.find("b").Hold()
		s.name("a c")
		s.pass(leaveLimit)
		s.want("until the limit", "a 0, c 2, b 1 leaving")
		s.pass(3 * time.Second)
		s.want("after it", "a 0, c 2")
	})
}

// TestOneThatComesBack has a replica miss from the file for less than the grace.
func TestOneThatComesBack(t *testing.T) {
	for _, c := range []struct{ start, later, events string }{
		{"1", "1", ""},
		{"1", "2", "b emptied"}, // it is another process, of the same size
		{"", "", "b emptied"},   // nothing tells
	} {
		scale(t, func(s *scaled) {
			s.answers("b", c.start)
			s.pass(time.Minute)
			s.events = nil
			b := s.find("b")
			s.name("a c")
			s.pass(10 * time.Second)
			s.want("it is not named", "a 0, c 2, b 1 leaving")
			s.answers("b", "none")
			s.name("a b c")
			s.pass(2 * time.Second)
			s.want("it has to answer first", "a 0, b 1 new, c 2")
			s.answers("b", c.later)
			s.pass(5 * time.Second)
			s.want("it is back", "a 0, b 1, c 2")
			if s.find("b") != b {
				t.Error("it is not the same")
			}
			s.wantEvents(c.events)
		})
	}
}

// TestNobodyIsLeft has the file fail in every way: who was there stays.
func TestNobodyIsLeft(t *testing.T) {
	scale(t, func(s *scaled) {
		for _, names := range []string{"", "a b d:1:1"} {
			s.name(names)
			s.pass(time.Minute)
			s.want("bad content", "a 0, b 1, c 2")
		}
		if err := os.Remove(s.path); err != nil {
			t.Fatal(err)
		}
		s.pass(time.Minute)
		s.want("no file", "a 0, b 1, c 2")
		if st := s.Sources()[0]; st.OK || st.Replicas != 3 {
			t.Errorf("%+v", st)
		}
	})
}

// TestManyComeAndGo never gives two replicas one slot, and slots stay dense.
func TestManyComeAndGo(t *testing.T) {
	scale(t, func(s *scaled) {
		highest := 0
		for i := range 25 {
			names := ""
			for j := range 8 {
				name := fmt.Sprintf("r%d", i*2+j)
				s.answers(name, "1")
				names += name + " "
			}
			s.name(names)
			s.pass(10 * time.Second)
			slots := map[int]bool{}
			for _, r := range s.Set().Replicas {
				if slots[r.Slot] {
					t.Fatalf("two replicas have slot %d", r.Slot)
				}
				slots[r.Slot] = true
				highest = max(highest, r.Slot)
			}
		}
		if highest > 20 {
			t.Errorf("8 replicas of which 2 are replaced every 10 s, and slot %d", highest)
		}
	})
}
