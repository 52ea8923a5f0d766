package discovery

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// nameServer is a DNS server on this machine, by UDP and TCP.
type nameServer struct {
	address string

	mu      sync.Mutex
	records []dns.RR
	rcode   int
	silent  bool
	asked   []time.Time // for A records
}

func newNameServer(t *testing.T, zone string) *nameServer {
	t.Helper()
	n := &nameServer{}
	n.set(t, zone)
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.address = packets.LocalAddr().String()
	streams, err := net.Listen("tcp", n.address)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: n}, {Listener: streams, Handler: n}} {
		up := make(chan struct{})
		s.NotifyStartedFunc = func() { close(up) }
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.ActivateAndServe()
		}()
		<-up
		t.Cleanup(func() {
			_ = s.Shutdown()
			<-done
		})
	}
	return n
}

// set makes the zone's records, one a line, all there are.
func (n *nameServer) set(t *testing.T, zone string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.records = nil
	for line := range strings.Lines(zone) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		r, err := dns.NewRR(line)
		if err != nil {
			t.Fatal(err)
		}
		n.records = append(n.records, r)
	}
}

func (n *nameServer) fail(rcode int, silent bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rcode, n.silent = rcode, silent
}

func (n *nameServer) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.silent {
		return
	}
	resp := new(dns.Msg).SetReply(q)
	resp.Rcode = n.rcode
	known := false
	if q.Question[0].Qtype == dns.TypeA {
		n.asked = append(n.asked, time.Now())
	}
	for _, r := range n.records {
		if !strings.EqualFold(r.Header().Name, q.Question[0].Name) {
			continue
		}
		known = true
		if t := r.Header().Rrtype; n.rcode == dns.RcodeSuccess && (t == q.Question[0].Qtype || t == dns.TypeCNAME) {
			resp.Answer = append(resp.Answer, r)
		}
	}
	if !known && n.rcode == dns.RcodeSuccess {
		resp.Rcode = dns.RcodeNameError
	}
	if w.LocalAddr().Network() == "udp" {
		resp.Truncate(int(q.IsEdns0().UDPSize()))
	}
	_ = w.WriteMsg(resp)
}

func (n *nameServer) source(t *testing.T, text string) names {
	t.Helper()
	separator := "?"
	if strings.Contains(text, "?") {
		separator = "&"
	}
	s, err := newDNS(text + separator + "server=" + n.address)
	if err != nil {
		t.Fatal(err)
	}
	return s.(names)
}

func TestDNSAddresses(t *testing.T) {
	var many, manyURLs []string
	for i := range 500 {
		many = append(many, fmt.Sprintf("many. 5 A 10.1.%d.%d", i/100, 100+i%100))
		manyURLs = append(manyURLs, fmt.Sprintf("http://10.1.%d.%d:80", i/100, 100+i%100))
	}
	n := newNameServer(t, `
		two.         7 A    10.0.0.2
		two.         5 A    10.0.0.1
		both.        5 A    10.0.0.1
		both.        5 AAAA fd00::1
		six.         9 AAAA fd00::2
		six.         9 AAAA fd00::1
		other.       5 TXT  "no address"
		_http._tcp.s. 30 SRV 0 0 8000 two.
		_http._tcp.s. 30 SRV 0 0 8001 six.
		_gone._tcp.s. 30 SRV 0 0 0 .
		_lost._tcp.s. 30 SRV 0 0 8000 two.
		_lost._tcp.s. 30 SRV 0 0 8000 nobody.
		`+strings.Join(many, "\n"))
	for _, c := range []struct {
		place, urls string
		ttl         time.Duration
	}{
		{"dns://two:8000", "http://10.0.0.1:8000 http://10.0.0.2:8000", 5 * time.Second},
		{"dns://TWO.:8000?scheme=https", "https://10.0.0.1:8000 https://10.0.0.2:8000", 5 * time.Second},
		{"dns://both:8000", "http://10.0.0.1:8000", 5 * time.Second}, // one replica with two addresses
		{"dns://six:8000", "http://[fd00::1]:8000 http://[fd00::2]:8000", 9 * time.Second},
		{"dns://other:8000", "", 0},
		{"dns://unknown:8000", "", 0},
		{"dns://many:80", strings.Join(manyURLs, " "), 5 * time.Second}, // by TCP
		{"dns+srv://_http._tcp.s", "http://10.0.0.1:8000 http://10.0.0.2:8000 http://[fd00::1]:8001 http://[fd00::2]:8001", 5 * time.Second},
		{"dns+srv://_gone._tcp.s", "", 0},
		{"dns+srv://_lost._tcp.s", "http://10.0.0.1:8000 http://10.0.0.2:8000", 5 * time.Second},
	} {
		urls, ttl, err := n.source(t, c.place).lookup(t.Context())
		if err != nil || texts(urls) != c.urls || ttl != c.ttl {
			t.Errorf("%s: %v for %v, %v; want %q for %v", c.place, texts(urls), ttl, err, c.urls, c.ttl)
		}
	}
	for _, rcode := range []int{dns.RcodeServerFailure, dns.RcodeRefused} {
		n.fail(rcode, false)
		for _, place := range []string{"dns://two:8000", "dns+srv://_http._tcp.s"} {
			if urls, _, err := n.source(t, place).lookup(t.Context()); len(urls) > 0 || err == nil || !strings.Contains(err.Error(), dns.RcodeToString[rcode]) {
				t.Errorf("%s: %v, %v", place, urls, err)
			}
		}
	}
}

// TestDNS follows a name while its answers change.
func TestDNS(t *testing.T) {
	t.Parallel()
	n := newNameServer(t, "vllm. 1 A 10.0.0.1")
	r := run(t, "dns://vllm:8000?server="+n.address)
	r.want("the first answer", "http://10.0.0.1:8000")
	n.set(t, "vllm. 1 A 10.0.0.1\nvllm. 1 A 10.0.0.2")
	if took := r.want("one more", "http://10.0.0.1:8000 http://10.0.0.2:8000"); took > 3*time.Second {
		t.Errorf("with a time to live of 1 s it took %v", took)
	}
	n.set(t, "vllm. 1 A 10.0.0.2")
	if took := r.want("one less", "http://10.0.0.2:8000"); took > 3*time.Second {
		t.Errorf("with a time to live of 1 s it took %v", took)
	}
	for what, broken := range map[string]func(){
		"SERVFAIL":        func() { n.fail(dns.RcodeServerFailure, false) },
		"an empty answer": func() { n.set(t, `vllm. 1 TXT "no address"`) },
		"no such name":    func() { n.set(t, "") },
		"no answer":       func() { n.fail(0, true) },
	} {
		broken()
		r.eventually(what+" is noticed", func() bool { return !r.status().OK })
		if s := r.status(); s.Replicas != 1 || len(r.sets) > 0 {
			t.Errorf("%s: the last good set does not stay: %+v", what, s)
		}
		n.fail(0, false)
		n.set(t, "vllm. 1 A 10.0.0.2")
		r.eventually("it is well again after "+what, func() bool { return r.status().OK })
	}
	if n, m := r.log.count("cannot be discovered"), r.log.count("discovered again"); n != 4 || m != 4 {
		t.Errorf("%d complaints, %d times well again: %s", n, m, &r.log.text)
	}
}

// TestDNSAsksWhenTheAnswerIsOld looks at when the server was asked.
func TestDNSAsksWhenTheAnswerIsOld(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ttl  int
		wait time.Duration
	}{{0, time.Second}, {2, 2 * time.Second}, {3600, 3 * time.Second}} {
		t.Run(fmt.Sprint(c.ttl), func(t *testing.T) {
			t.Parallel()
			n := newNameServer(t, fmt.Sprintf("vllm. %d A 10.0.0.1", c.ttl))
			ctx, cancel := context.WithTimeout(t.Context(), c.wait+900*time.Millisecond)
			defer cancel()
			n.source(t, "dns://vllm:8000?refresh=3s").Run(ctx, func(Update) {})
			n.mu.Lock()
			defer n.mu.Unlock()
			if len(n.asked) != 2 {
				t.Fatalf("asked %d times", len(n.asked))
			}
			if after := n.asked[1].Sub(n.asked[0]); after < c.wait-50*time.Millisecond {
				t.Errorf("asked again after %v, want %v", after, c.wait)
			}
		})
	}
}

// TestDNSThatIsSilentHoldsNothingUp stops while an answer is waited for.
func TestDNSThatIsSilentHoldsNothingUp(t *testing.T) {
	t.Parallel()
	n := newNameServer(t, "")
	n.fail(0, true)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	began := time.Now()
	n.source(t, "dns://vllm:8000").Run(ctx, func(Update) { t.Error("it was told") })
	if took := time.Since(began); took > 300*time.Millisecond+queryTimeout/2 {
		t.Errorf("it ended %v after it was told to", took-300*time.Millisecond)
	}
}

// TestDNSThatLies answers with what is nobody's address, as resolvers do that block.
func TestDNSThatLies(t *testing.T) {
	n := newNameServer(t, `
		liar.         5 A    0.0.0.0
		liar.         5 A    10.0.0.1
		liar.         5 A    224.0.0.1
		six.          5 AAAA ::
		six.          5 AAAA ff02::1
		_http._tcp.s. 5 SRV 0 0 0 liar.
		_http._tcp.s. 5 SRV 0 0 8000 liar.
		`)
	n.mu.Lock()
	n.records = append(n.records, &dns.A{Hdr: dns.RR_Header{Name: "liar.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}}) // no address at all
	n.mu.Unlock()
	for place, want := range map[string]string{"dns://liar:8000": "http://10.0.0.1:8000", "dns://six:8000": "", "dns+srv://_http._tcp.s": "http://10.0.0.1:8000"} {
		if urls, _, err := n.source(t, place).lookup(t.Context()); err != nil || texts(urls) != want {
			t.Errorf("%s: %s, %v; want %q", place, texts(urls), err, want)
		}
	}
}
