package gateway_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
)

// authority signs certificates of a test.
type authority struct {
	t    testing.TB
	dir  string
	file string // its own certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.file, _ = a.sign("ca", "ca")
	return a
}

// sign writes a certificate of that name, valid for this host, and its key.
func (a *authority) sign(file, name string) (certFile, keyFile string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	a.next++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.next), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	if a.cert == nil {
		a.key = key
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			a.t.Fatal(err)
		}
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(a.dir, file+".crt"), filepath.Join(a.dir, file+".key")
	replaceFile(a.t, certFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	replaceFile(a.t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
	return certFile, keyFile
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// trust makes a gate's client trust the authority.
func (g *gate) trust(a *authority, http2 bool) {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.pool()}, ForceAttemptHTTP2: http2, DisableCompression: true}
	g.t.Cleanup(tr.CloseIdleConnections)
	g.client = &http.Client{Transport: tr}
}

func TestClientsUseTLS(t *testing.T) {
	a := newAuthority(t)
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		s.send(roleEvent, tok("a"), finEvent, doneEvent)
	})
	g := start(t, func(c *config.Config) {
		c.Client.TLSCert, c.Client.TLSKey = a.sign("gate", "gate")
	}, w.url)
	plain := g.client
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		g.trust(a, proto == "HTTP/2.0")
		resp, err := g.do(chatPath, []byte(streamReq))
		if err != nil {
			t.Fatal(err)
		}
		if resp.Proto != proto {
			t.Errorf("spoken %s, want %s", resp.Proto, proto)
		}
		if got := whole(resp); got.body != roleEvent+tok("a")+finEvent+doneEvent || got.err != nil {
			t.Errorf("%s: %v %q", proto, got.err, got.body)
		}
		if h := resp.Header; h.Get("Connection") != "" || h.Get("Transfer-Encoding") != "" {
			t.Errorf("%s: headers %v", proto, h)
		}
	}
	old := &tls.Config{RootCAs: a.pool(), MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	if c, err := tls.Dial("tcp", strings.TrimPrefix(g.Addr(), "https://"), old); err == nil {
		_ = c.Close()
		t.Error("TLS 1.1 is spoken")
	}
	resp, err := plain.Get("http" + strings.TrimPrefix(g.Addr(), "https") + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	if got := whole(resp); got.status != http.StatusBadRequest || strings.Contains(got.body, "m1") {
		t.Errorf("without TLS: %d %s", got.status, got.body)
	}
	g.idle()
}

// TestAStreamThatIsCutOffOverHTTP2IsNotWhole: an abort resets the stream and
// leaves the connection to others.
func TestAStreamThatIsCutOffOverHTTP2IsNotWhole(t *testing.T) {
	a := newAuthority(t)
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"half":`))
		_ = http.NewResponseController(w).Flush()
		reset(w)
	})
	g := start(t, func(c *config.Config) {
		c.Client.TLSCert, c.Client.TLSKey = a.sign("gate", "gate")
	}, w.url)
	g.trust(a, true)
	if resp, err := g.do(chatPath, []byte(wholeReq)); err == nil { // else it was reset before its head was out
		if got := whole(resp); got.err == nil {
			t.Errorf("it looks whole: %d %q", got.status, got.body)
		}
	}
	if got := g.get("/v1/models"); got.status != http.StatusOK {
		t.Errorf("the connection is of no use: %d", got.status)
	}
	g.idle()
}

func TestReplicasAreReachedByTLS(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	serve := func(t *testing.T, cert, key string, clients *x509.CertPool) *worker {
		w := &worker{}
		w.server = httptest.NewUnstartedServer(w.handler(func(rw http.ResponseWriter, r *http.Request) {
			if clients != nil && r.TLS.PeerCertificates[0].Subject.CommonName != "the gateway" {
				t.Error("another certificate came with a request")
			}
			answers(rw, r)
		}))
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		w.server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
		if clients != nil {
			w.server.TLS.ClientAuth, w.server.TLS.ClientCAs = tls.RequireAndVerifyClientCert, clients
		}
		w.server.StartTLS()
		t.Cleanup(w.server.Close)
		w.url = w.server.URL
		return w
	}
	f := func(name string, fails string, change func(*config.Config), mutual bool) {
		t.Run(name, func(t *testing.T) {
			cert, key := a.sign("replica", "vllm.internal")
			var clients *x509.CertPool
			if mutual {
				clients = a.pool()
			}
			w := serve(t, cert, key, clients)
			g := startUnready(t, change, w.url)
			if fails != "" {
				g.logged("replica is not ready yet", fails)
				if got := g.ask(chatPath, wholeReq); got.status != http.StatusServiceUnavailable {
					t.Errorf("a request: %d %s", got.status, got.body)
				}
				return
			}
			eventually(t, "it is up", func() bool { return g.metric("warmpath_replica_up") == 1 })
			g.must(chatPath, wholeReq)
			g.idle()
		})
	}
	trusting := func(c *config.Config) { c.Replica.TLSCA = a.file }
	f("its authority is known", "", trusting, false)
	f("it is not known", "certificate signed by unknown authority", nil, false)
	f("another is", "certificate signed by unknown authority", func(c *config.Config) { c.Replica.TLSCA = other.file }, false)
	f("by its name", "", func(c *config.Config) { trusting(c); c.Replica.TLSServerName = "vllm.internal" }, false)
	f("by a wrong name", "not other.internal", func(c *config.Config) { trusting(c); c.Replica.TLSServerName = "other.internal" }, false)
	f("not checked", "", func(c *config.Config) { c.Replica.TLSInsecure = true }, false)
	f("both have certificates", "", func(c *config.Config) {
		trusting(c)
		c.Replica.TLSCert, c.Replica.TLSKey = a.sign("ours", "the gateway")
	}, true)
	f("ours is missing", "tls: certificate required", trusting, true)

	w := serve(t, filepath.Join(a.dir, "replica.crt"), filepath.Join(a.dir, "replica.key"), nil)
	start(t, func(c *config.Config) { c.Replica.TLSInsecure = true }, w.url).logged("level=WARN", "certificates of replicas are not checked")
}

// mute is a listener whose new connections can be left without an answer.
type mute struct {
	net.Listener
	on atomic.Bool
}

func (l *mute) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || !l.on.Load() {
			return c, err
		}
		defer c.Close() //nolint:gocritic // it stays open as long as the listener does
	}
}

// TestReplicaThatDoesNotFinishATLSHandshakeIsNotWaitedForLong: it is a part of the
// set-up of a connection.
func TestReplicaThatDoesNotFinishATLSHandshakeIsNotWaitedForLong(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.sign("replica", "replica")
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{}
	w.server = httptest.NewUnstartedServer(w.handler(answers))
	l := &mute{Listener: w.server.Listener}
	w.server.Listener = l
	w.server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	w.server.StartTLS()
	t.Cleanup(w.server.Close)
	g := start(t, func(c *config.Config) {
		c.Replica.TLSCA, c.Proxy.ConnectTimeout = a.file, 100*time.Millisecond
	}, w.server.URL)
	l.on.Store(true) // probes have their connection
	got := g.ask(chatPath, wholeReq)
	if e := parse(t, got.body); got.status != http.StatusBadGateway || e.text("error", "code") != "replica_unreachable" {
		t.Errorf("got %d %s", got.status, got.body)
	}
	g.idle()
}
