package share

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/warmpath/warmpath/internal/prefix"
	"github.com/warmpath/warmpath/internal/router"
)

// sham is a server without data, in memory, so that an hour takes a second. It may be
// down, and refuse connections, or frozen, and answer nothing.
type sham struct {
	mu     sync.Mutex
	state  string // "up", "down", "frozen"
	dials  int
	hellos []time.Time // of connections that are used
	calls  map[string]int
	bytes  int
	conns  map[net.Conn]bool
	serves sync.WaitGroup
}

// turn puts the server into another state. What was connected is cut off.
func (s *sham) turn(state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
	for c := range s.conns {
		_ = c.Close()
	}
	s.conns, s.dials, s.hellos, s.calls, s.bytes = map[net.Conn]bool{}, 0, nil, map[string]int{}, 0
}

// dial is a client's dialer.
func (s *sham) dial(context.Context, string, string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dials++
	if s.state == "down" {
		return nil, errors.New("connection refused")
	}
	theirs, ours := net.Pipe()
	s.conns[ours] = true
	serve := s.serve
	if s.state == "frozen" { // its socket still takes what is sent
		serve = func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	}
	s.serves.Go(func() {
		serve(ours)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, ours)
	})
	return theirs, nil
}

func (s *sham) serve(c net.Conn) {
	in := bufio.NewReader(c)
	answers := make(chan string, 1024) // as a socket's buffer: who sends a pipeline reads later
	defer close(answers)
	s.serves.Go(func() {
		for a := range answers {
			_, _ = io.WriteString(c, a)
		}
	})
	for {
		args, err := command(in)
		if err != nil {
			return
		}
		name := strings.ToUpper(args[0])
		s.mu.Lock()
		s.calls[name]++
		if name == "HELLO" {
			s.hellos = append(s.hellos, time.Now())
		}
		for _, a := range args {
			s.bytes += len(a)
		}
		s.mu.Unlock()
		answer := "+OK\r\n"
		switch name {
		case "HELLO":
			answer = "-ERR unknown command\r\n"
		case "XADD":
			answer = "$3\r\n1-1\r\n"
		case "EXPIRE", "DEL":
			answer = ":1\r\n"
		case "XREVRANGE":
			answer = "*0\r\n"
		case "XINFO":
			answer = "-ERR no such key\r\n"
		case "XREAD":
			time.Sleep(blockTime)
			answer = "*-1\r\n"
		}
		answers <- answer
	}
}

// command reads an array of strings, which is what a client sends.
func command(in *bufio.Reader) (args []string, err error) {
	number := func(mark byte) (n int) {
		line, e := in.ReadString('\n')
		if e != nil || line[0] != mark {
			err = fmt.Errorf("%q: %w", line, errors.Join(e, errMalformed))
			return 0
		}
		n, err = strconv.Atoi(strings.TrimSpace(line[1:]))
		return n
	}
	for range number('*') {
		text := make([]byte, number('$')+2)
		if err == nil {
			_, err = io.ReadFull(in, text)
		}
		if err != nil {
			return nil, err
		}
		args = append(args, string(text[:len(text)-2]))
	}
	if err == nil && len(args) == 0 {
		err = errMalformed
	}
	return args, err
}

// through makes a member use the server in memory. It must not run yet.
func (m *member) through(s *sham) {
	_ = m.client.Close()
	o, _ := m.cfg.options()
	o.Dialer = s.dial
	m.client = redis.NewUniversalClient(o)
}

// TestAnHourWithoutRedis under load: memory does not grow, the log has a line each half
// minute, tries are seldom and not in step, and what comes at once afterwards is little.
func TestAnHourWithoutRedis(t *testing.T) {
	for _, state := range []string{"down", "frozen"} {
		t.Run(state, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { anHour(t, state) }) })
	}
}

func anHour(t *testing.T, state string) {
	const gateways, away, cuts = 4, time.Hour, 128
	server := &sham{}
	server.turn("up")
	ctx, stop := context.WithCancel(t.Context())
	var members []*member
	var wg sync.WaitGroup
	for range gateways {
		m := newMember(t, "redis://127.0.0.1:1", 4)
		m.through(server)
		wg.Go(func() { m.Run(ctx) })
		members = append(members, m)
	}
	defer func() {
		stop()
		wg.Wait()
		server.turn("down")
		server.serves.Wait()
	}()
	works := func() bool {
		return !slices.ContainsFunc(members, func(m *member) bool { return value(m.metrics.Hearing)+value(m.metrics.Telling) != 2 })
	}
	asked := 0
	ask := func(m *member) {
		asked++
		c := chain(128)
		for i := range cuts {
			c.Cuts = append(c.Cuts, prefix.Cut{Hash: prefix.Hash(asked%3000*cuts + i + 1), Tokens: int32(128 * (i + 1))})
		}
		c.Tokens = cuts * 128
		l := m.acquire(t, &prefix.Prompt{Chains: []prefix.Chain{*c}, Tokens: int(c.Tokens)})
		l.Prefilled(time.Now())
		l.Done(router.Outcome{End: router.Completed, Prefilled: true}, time.Now())
	}
	heap := func() uint64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	for range 20 {
		ask(members[0])
		time.Sleep(250 * time.Millisecond)
	}
	if !works() {
		t.Fatalf("the server in memory is not used: %s", members[0].log)
	}

	server.turn(state)
	var early uint64
	for began := time.Now(); time.Since(began) < away; time.Sleep(4 * time.Second) {
		for _, m := range members {
			for range 8 {
				ask(m)
			}
			o := m.out
			o.mu.Lock()
			if len(o.load) > maxLoad || len(o.held) > maxHeld || o.loadBytes > maxLoadBytes+cutBytes*cuts || o.heldBytes > maxHeldBytes+cutBytes*cuts || len(o.open) > 0 || len(o.notices) > maxNotices {
				t.Errorf("%d and %d events wait, %d and %d bytes, %d under way", len(o.load), len(o.held), o.loadBytes, o.heldBytes, len(o.open))
			}
			o.mu.Unlock()
		}
		if time.Since(began) == away/3 {
			early = heap()
		}
	}
	if late := heap(); early == 0 || late > early+8<<20 {
		t.Errorf("memory grows from %d to %d MiB in %v", early>>20, late>>20, 2*away/3)
	}
	server.mu.Lock()
	// Both directions try after a pause, and the client probes once a second on its own
	// while nobody answers.
	if rate := float64(server.dials) / gateways / away.Seconds(); rate > 1+2/(longestPause*3/4).Seconds() || rate < 1/longestPause.Seconds() {
		t.Errorf("each gateway tries %.2f times a second", rate)
	}
	server.mu.Unlock()
	for _, m := range members {
		if n := strings.Count(m.log.String(), "Redis cannot be used"); n < 100 || n > 122 {
			t.Errorf("%d log lines in %v", n, away)
		}
	}

	server.turn("up")
	back := time.Now()
	for !works() {
		if time.Since(back) > 2*longestPause {
			t.Fatal("Redis is not used again")
		}
		time.Sleep(10 * time.Millisecond)
	}
	server.mu.Lock()
	hellos := server.hellos
	if spread := hellos[len(hellos)-1].Sub(hellos[0]); spread < longestPause/8 {
		t.Errorf("%d connections are made within %v", len(hellos), spread)
	}
	server.calls, server.bytes = map[string]int{}, 0
	server.mu.Unlock()
	time.Sleep(10 * time.Second) // until what waited has been sent
	server.mu.Lock()
	if perSecond := server.bytes / 10 / gateways; perSecond > 4*prefixAtOnce+64<<10 {
		t.Errorf("each gateway sends %d bytes a second afterwards", perSecond)
	}
	if n := float64(server.calls["XADD"]) / 10 / gateways; n > 12 {
		t.Errorf("each gateway sends %.0f batches a second afterwards: %v", n, server.calls)
	}
	server.mu.Unlock()
	for _, m := range members {
		if load, held := m.out.waiting(); load != 0 || held != 0 {
			t.Errorf("%d and %d events still wait", load, held)
		}
	}
}
