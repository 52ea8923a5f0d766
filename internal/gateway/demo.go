package gateway

import (
	"fmt"
	"net"
	"net/http"

	"github.com/warmpath/warmpath/internal/mockvllm"
)

// demo is mock replicas inside this process.
type demo struct {
	urls    []string
	servers []*http.Server
	mocks   []*mockvllm.Server
}

func startDemo(n int) (*demo, error) {
	d := &demo{}
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			d.stop()
			return nil, fmt.Errorf("demo: %w", err)
		}
		mock := mockvllm.New(mockvllm.DefaultConfig())
		server := &http.Server{Handler: mock.Handler(), ReadHeaderTimeout: headerTimeout}
		go func() { _ = server.Serve(l) }() // ends when stop closes it
		d.mocks, d.servers = append(d.mocks, mock), append(d.servers, server)
		d.urls = append(d.urls, "http://"+l.Addr().String())
	}
	return d, nil
}

func (d *demo) stop() {
	for i := range d.servers {
		_ = d.servers[i].Close()
		d.mocks[i].Close()
	}
}
