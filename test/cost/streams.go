package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// streams opens many streams at a time through the gateway and through a bare
// ReverseProxy, and measures what they take while they are open.
func streams(s *settings, out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(table, "| %d streams\t| events/s\t| CPU a second and stream\t| CPU an event\t| memory a stream\t|\n|---\t|---\t|---\t|---\t|---\t|\n", s.streams)
	proxies := []struct {
		name  string
		start func(urls []string) (*process, error)
	}{{"gateway", s.runGateway}}
	if s.instant != "" {
		proxies = append(proxies, struct {
			name  string
			start func(urls []string) (*process, error)
		}{"ReverseProxy", s.runReverseProxy})
	}
	for _, proxy := range proxies {
		for range s.rounds {
			o, err := s.open(proxy.start)
			if err != nil {
				return fmt.Errorf("%s: %w", proxy.name, err)
			}
			_, _ = fmt.Fprintf(table, "| %s\t| %.0f\t| %.0f µs\t| %.1f µs\t| %.1f KB\t|\n", proxy.name, o.events,
				micros(o.cpu)/float64(s.streams), micros(o.cpu)/max(1, o.events), float64(o.memory)/1024/float64(s.streams))
		}
	}
	return table.Flush()
}

func (s *settings) runReverseProxy(urls []string) (*process, error) {
	address, _, err := free2()
	if err != nil {
		return nil, err
	}
	return run(address, s.instant, "-listen", address, "-proxy", strings.Join(urls, ","))
}

// opened is what streams take together.
type opened struct {
	events float64       // that reach their clients in a second
	cpu    time.Duration // in a second
	memory int64         // beyond that of the proxy without them
}

func (s *settings) open(start func([]string) (*process, error)) (o opened, err error) {
	urls, stop, err := replicas(2, true)
	if err != nil {
		return o, err
	}
	defer stop()
	p, err := start(urls)
	if err != nil {
		return o, err
	}
	defer p.stop()
	before, err := p.memory()
	if err != nil {
		return o, err
	}
	var seen atomic.Int64
	var clients sync.WaitGroup
	var conns []net.Conn
	defer clients.Wait()
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for i := range s.streams {
		c, err := net.Dial("tcp", p.address)
		if err != nil {
			return o, err
		}
		conns = append(conns, c)
		if _, err := c.Write(request(1<<10, i)); err != nil {
			return o, err
		}
		clients.Go(func() { watch(c, &seen) })
	}
	for last := int64(-1); seen.Load() < int64(s.streams) || last < 0; time.Sleep(100 * time.Millisecond) {
		if last == seen.Load() {
			return o, fmt.Errorf("only %d of %d streams began", last, s.streams)
		}
		last = seen.Load()
	}
	time.Sleep(s.each) // what their beginnings took is over
	n := seen.Load()
	began := time.Now()
	if o.cpu, err = p.during(time.Second, func() error { time.Sleep(s.each); return nil }); err != nil {
		return o, err
	}
	o.events = float64(seen.Load()-n) / time.Since(began).Seconds()
	after, err := p.memory()
	o.memory = after - before
	return o, err
}

// watch counts the events that come.
func watch(c net.Conn, seen *atomic.Int64) {
	buf := make([]byte, 4<<10)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		seen.Add(int64(bytes.Count(buf[:n], []byte("data: "))))
	}
}
