package mockvllm

import (
	"context"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Server is one replica: an [Engine] driven in real time behind vLLM's HTTP API. All methods are safe for concurrent
// use.
type Server struct {
	cfg      Config
	start    time.Time
	handler  http.Handler
	metrics  *metrics
	faults   faultPlan
	received ring
	stored   responseStore
	vocab    vocabulary
	inFlight atomic.Int64

	wake      chan struct{} // the engine has new work
	stop      chan struct{} // closed by Close
	closeOnce sync.Once
	driver    sync.WaitGroup

	mu       sync.Mutex // guards what follows
	engine   *Engine
	live     map[uint64]*choice
	finished map[string]uint64 // ended requests by finish reason
	sleep    int               // level, or awake
	closed   bool
}

// awake is the value of Server.sleep when the server does not sleep: level 0 is a sleep too.
const awake = -1

// Stats tell what the server did and does; see [Counters] for the engine's part.
type Stats struct {
	Counters
	InFlight int               // HTTP requests being answered, probes and controls not counted
	Finished map[string]uint64 // sequences that ended, by finish reason
	Sleeping bool
}

// New starts a replica. It owns one goroutine until [Server.Close].
func New(cfg Config) *Server {
	cfg = cfg.withDefaults()
	s := &Server{
		cfg:      cfg,
		start:    time.Now(),
		wake:     make(chan struct{}, 1),
		stop:     make(chan struct{}),
		engine:   NewEngine(cfg),
		live:     map[uint64]*choice{},
		finished: map[string]uint64{},
		sleep:    awake,
	}
	s.received.max = cfg.KeepRequests
	s.metrics = newMetrics(s)
	s.handler = s.routes()
	s.driver.Go(s.drive)
	return s
}

// Handler serves the whole API.
func (s *Server) Handler() http.Handler { return s.handler }

// Close stops the engine as a vLLM that is told to stop does: what is running ends with finish_reason abort, a stream
// that looks clean. It waits for the server's goroutine, not for handlers; close the HTTP server after it.
func (s *Server) Close() {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.abortAll()
		s.mu.Unlock()
		close(s.stop)
	})
	s.driver.Wait()
}

// Stats returns a consistent snapshot.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	finished := make(map[string]uint64, len(s.finished))
	maps.Copy(finished, s.finished)
	return Stats{
		Counters: s.engine.Counters(),
		InFlight: int(s.inFlight.Load()),
		Finished: finished,
		Sleeping: s.sleep != awake,
	}
}

// drive steps the engine whenever a step ends or work arrives.
func (s *Server) drive() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	next := Idle
	for {
		select {
		case <-s.stop:
			return
		case <-timer.C:
		case <-s.wake:
		}
		var events []Event
		s.mu.Lock()
		events, next = s.engine.Step(stepTime(time.Since(s.start), next))
		for _, ev := range events {
			s.deliver(ev)
		}
		s.mu.Unlock()
		timer.Stop()
		if next != Idle {
			timer.Reset(next - time.Since(s.start))
		}
	}
}

// catchUp is the lateness from which on a replica stood still: twice the 10 ms that the Go runtime lets a goroutine run
// before another one's turn. Timers add up to a millisecond.
const catchUp = 20 * time.Millisecond

// stepTime is when a step that was to end at next has ended, now that its end is heard of: at next if that is only a
// little ago, for small lateness would add up over an answer's tokens. A replica that stood still goes on from now, as
// an engine would, and does not do all it missed at once.
func stepTime(now, next time.Duration) time.Duration {
	if late := now - next; late > 0 && late < catchUp {
		return next
	}
	return now
}

// kick makes the driver step soon.
func (s *Server) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// choice is one sequence in the engine and what its HTTP request knows about it.
type choice struct {
	answer    answer
	prompt    int    // tokens
	output    int    // tokens to generate
	reason    string // finish reason unless aborted
	submitted time.Time
	notify    chan struct{} // shared by the choices of a job

	id uint64
	progress
}

// progress is guarded by Server.mu.
type progress struct {
	generated int
	cached    int
	started   bool // the engine produced something: the prefill is over
	ended     bool
	aborted   bool
}

// finish is the reason to report for a choice that ended.
func (c *choice) finish(p progress) string {
	if p.aborted {
		return "abort"
	}
	return c.reason
}

// job is what one HTTP request has in the engine: a choice for each prompt and each of its n answers.
type job struct {
	s       *Server
	choices []*choice
	notify  chan struct{}
}

// submit hands choices to the engine, all or none. The caller must close the job.
func (s *Server) submit(reqs []Request, choices []*choice) (*job, error) {
	j := &job{s: s, choices: choices, notify: make(chan struct{}, 1)}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range choices {
		c.notify, c.submitted = j.notify, now
		if s.closed {
			s.end(c, true)
			continue
		}
		id, err := s.engine.Submit(reqs[i])
		if err != nil {
			for _, c := range choices[:i] {
				s.abort(c)
			}
			return nil, err
		}
		c.id = id
		s.live[id] = c
	}
	s.kick()
	return j, nil
}

// wait blocks until some choice has progressed since the last wait.
func (j *job) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-j.notify:
		return nil
	}
}

func (j *job) progress(i int) progress {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	return j.choices[i].progress
}

// close aborts what has not ended, as vLLM does when the client has gone.
func (j *job) close() {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	for _, c := range j.choices {
		j.s.abort(c)
	}
}

// deliver tells a choice what the engine did for it. The caller holds mu.
func (s *Server) deliver(ev Event) {
	c := s.live[ev.ID]
	if c == nil {
		return
	}
	if !c.started {
		c.started = true
		s.metrics.ttft.Observe(time.Since(c.submitted).Seconds())
	}
	c.generated, c.cached = ev.Generated, ev.Cached
	if ev.Finished {
		s.end(c, false)
		return
	}
	c.tell()
}

// abort ends a choice that is still in the engine. The caller holds mu.
func (s *Server) abort(c *choice) {
	if !c.ended {
		s.engine.Abort(c.id)
		s.end(c, true)
	}
}

// abortAll ends every choice. The caller holds mu.
func (s *Server) abortAll() {
	for _, c := range s.live {
		s.abort(c)
	}
}

func (s *Server) end(c *choice, aborted bool) {
	c.ended, c.aborted = true, aborted
	delete(s.live, c.id)
	s.finished[c.finish(c.progress)]++
	s.metrics.e2e.Observe(time.Since(c.submitted).Seconds())
	c.tell()
}

func (c *choice) tell() {
	select {
	case c.notify <- struct{}{}:
	default:
	}
}
