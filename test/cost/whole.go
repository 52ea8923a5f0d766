package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file measures a gateway as a process, between a client and replicas that are
// here and answer at once.

const (
	event  = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"word"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	done   = "data: [DONE]\n\n"
	models = `{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"vllm","max_model_len":131072}]}`
)

// pace is the time between two events of an open stream.
const pace = 50 * time.Millisecond

// replicas serves n addresses until stop is called. Streams of paced replicas go on
// until then.
func replicas(n int, paced bool) (urls []string, stop func(), err error) {
	ended := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, models) })
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w).Flush
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for i := 0; paced || i < 16; i++ {
			if _, err := io.WriteString(w, event); err != nil || flush() != nil {
				return
			}
			if !paced {
				continue
			}
			select {
			case <-tick.C:
			case <-ended:
				paced = false
			}
		}
		_, _ = io.WriteString(w, done)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			_ = server.Close()
			return nil, nil, err
		}
		urls = append(urls, "http://"+l.Addr().String())
		go func() { _ = server.Serve(l) }() // until Close
	}
	return urls, func() { close(ended); _ = server.Close() }, nil
}

// process is a proxy that runs.
type process struct {
	cmd     *exec.Cmd
	address string // host:port for clients
}

// run starts a proxy that serves on address, and waits until it does.
func run(address, path string, args ...string) (*process, error) {
	p := &process{exec.Command(path, args...), address}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	for range 1000 {
		if resp, err := http.Get("http://" + address + "/v1/models"); err == nil {
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if strings.Contains(string(body), `"m"`) {
				return p, nil
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	p.stop()
	return nil, fmt.Errorf("%s does not serve", path)
}

func (p *process) stop() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()
}

// runGateway starts a gateway over replicas, whose log goes nowhere.
func (s *settings) runGateway(urls []string) (*process, error) {
	address, admin, err := free2()
	if err != nil {
		return nil, err
	}
	args := []string{"-listen", address, "-admin", admin}
	for _, u := range urls {
		args = append(args, "-replica", u)
	}
	return run(address, s.gateway, args...)
}

// free2 returns two addresses that nobody listens on.
func free2() (a, b string, err error) {
	for _, to := range []*string{&a, &b} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", err
		}
		defer func() { _ = l.Close() }()
		*to = l.Addr().String()
	}
	return a, b, nil
}

// tick is the kernel's unit of CPU time in /proc (USER_HZ, 100 on every Linux).
const tick = 10 * time.Millisecond

// cpu returns the CPU time that the process has taken.
func (p *process) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return time.Duration(user+system) * tick, err
}

// memory returns the bytes of the process that are in memory.
func (p *process) memory() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// request returns a request with a prompt of so many bytes. The first word is the
// prompt's own.
func request(size, number int) []byte {
	const words = "cluster fault resource schedule network storage "
	prompt := fmt.Sprintf("%08d ", number) + strings.Repeat(words, size/len(words)+1)
	body := `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + prompt[:max(9, size)] + `"}]}`
	return fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// stage is a gateway before replicas of its own, and a client that asks one thing
// after another.
type stage struct {
	*process
	one  func() error // makes a request of the size
	stop func()
}

// stage opens a gateway over n replicas, for prompts of a size.
func (s *settings) stage(n, size int) (*stage, error) {
	urls, stop, err := replicas(n, false)
	if err != nil {
		return nil, err
	}
	p, err := s.runGateway(urls)
	if err != nil {
		stop()
		return nil, err
	}
	conn, err := net.Dial("tcp", p.address)
	if err != nil {
		p.stop()
		stop()
		return nil, err
	}
	in, prompt := bufio.NewReader(conn), request(size, 1)
	st := &stage{process: p, stop: func() {
		_ = conn.Close()
		p.stop()
		stop()
	}}
	st.one = func() error {
		if _, err := conn.Write(prompt); err != nil {
			return err
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && !strings.HasSuffix(string(text), done) {
			err = fmt.Errorf("the answer was %d %s", resp.StatusCode, text)
		}
		return err
	}
	for range 20 + 2*n { // each replica has a connection then
		if err := st.one(); err != nil {
			st.stop()
			return nil, err
		}
	}
	return st, nil
}

// whole measures requests one after another through gateways, of which their probes are
// no part. The gateways have their rounds in turn: what the machine is busy with changes
// from second to second.
func (s *settings) whole(sizes []int, open func(size int) (*stage, error)) ([]cost, error) {
	costs := make([][]cost, len(sizes))
	var stages []*stage
	for _, size := range sizes {
		st, err := open(size)
		if err != nil {
			return nil, err
		}
		defer st.stop()
		stages = append(stages, st)
	}
	for range s.rounds {
		for i, st := range stages {
			c, err := s.round(st)
			if err != nil {
				return nil, err
			}
			costs[i] = append(costs[i], c)
		}
	}
	medians := make([]cost, len(sizes))
	for i, all := range costs {
		medians[i] = median(all)
	}
	return medians, nil
}

// round measures first what the gateway takes when nothing is asked of it.
func (s *settings) round(st *stage) (c cost, err error) {
	var took []time.Duration
	idle, err := st.during(s.each, func() error { time.Sleep(s.each); return nil })
	if err != nil {
		return c, err
	}
	began := time.Now()
	busy, err := st.during(s.each, func() error {
		for time.Since(began) < s.each {
			start := time.Now()
			if err := st.one(); err != nil {
				return err
			}
			took = append(took, time.Since(start))
		}
		return nil
	})
	if err != nil {
		return c, err
	}
	slices.Sort(took)
	return cost{cpu: max(0, busy-idle) / time.Duration(len(took)), p50: took[len(took)/2]}, nil
}

// during returns the CPU time that the process took while f ran, scaled to a time.
func (p *process) during(each time.Duration, f func() error) (time.Duration, error) {
	before, err := p.cpu()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := f(); err != nil {
		return 0, err
	}
	elapsed := time.Since(began)
	after, err := p.cpu()
	return time.Duration(float64(after-before) * float64(each) / float64(elapsed)), err
}
