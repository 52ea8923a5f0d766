//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/discovery"
)

// cluster is an API server of Kubernetes over an etcd, both real, and nothing else: no
// node, no controller. What controllers would write into EndpointSlices the test does.
type cluster struct {
	t           *testing.T
	dir, binary string
	etcd, url   string
	client      *http.Client
	server      *exec.Cmd
}

// adminToken is of a user who may do everything.
const adminToken = "admin-of-the-test"

func newCluster(t *testing.T) *cluster {
	binaries, _ := filepath.Glob(filepath.Join(kubeHome(t), "kube-apiserver-*"))
	etcd, err := exec.LookPath("etcd")
	if len(binaries) == 0 || err != nil {
		t.Skip("there is no API server, or no etcd: test/kube/setup.sh builds the one, apt-get install etcd-server brings the other")
	}
	c := &cluster{t: t, dir: t.TempDir(), binary: binaries[len(binaries)-1]}
	c.etcd = "http://" + freeAddress(t)
	c.url = "https://" + freeAddress(t)
	peers := "http://" + freeAddress(t)
	c.run(exec.Command(etcd, "--data-dir", filepath.Join(c.dir, "etcd"), "--listen-client-urls", c.etcd, "--advertise-client-urls", c.etcd,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers), "etcd.log")
	c.write("tokens.csv", adminToken+`,admin,admin,"system:masters"`+"\n")
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	c.write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	c.start()
	return c
}

func kubeHome(t *testing.T) string {
	if home := os.Getenv("KUBE_HOME"); home != "" {
		return home
	}
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(home, ".cache", "warmpath-kube")
}

func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *cluster) write(name, text string) {
	if err := os.WriteFile(c.path(name), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// run starts a process that ends with the test, or with this process.
func (c *cluster) run(cmd *exec.Cmd, log string) {
	out, err := os.OpenFile(c.path(log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = out.Close()
		if c.t.Failed() {
			c.t.Logf("%s:\n%s", log, tail(c.path(log), 20))
		}
	})
}

// start starts the API server, for the first time or again, and waits until it serves.
func (c *cluster) start() {
	c.t.Helper()
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(c.url, "https://"))
	key := c.path("key.pem")
	c.server = exec.Command(c.binary, "--etcd-servers", c.etcd, "--bind-address", "127.0.0.1", "--secure-port", port, "--cert-dir", c.dir,
		"--service-account-issuer", "https://warmpath.test", "--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--token-auth-file", c.path("tokens.csv"), "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.0.0.0/24")
	c.run(c.server, "apiserver.log")
	eventually(c.t, 3*time.Minute, "the API server", func() error {
		roots := x509.NewCertPool()
		certificate, err := os.ReadFile(c.path("apiserver.crt")) // which it makes itself
		if err != nil {
			return err
		}
		roots.AppendCertsFromPEM(certificate)
		c.client = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
		_, err = c.try(http.MethodGet, "/readyz", "", nil)
		return err
	})
}

// stop ends the API server.
func (c *cluster) stop() {
	_ = c.server.Process.Kill()
	_ = c.server.Wait()
}

func (c *cluster) try(method, path, kind string, body []byte) ([]byte, error) {
	req, err := http.NewRequest(method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	req.Header.Set("Content-Type", kind)
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	return text, err
}

func (c *cluster) post(path string, object any) []byte {
	c.t.Helper()
	body, err := json.Marshal(object)
	if err != nil {
		c.t.Fatal(err)
	}
	text, err := c.try(http.MethodPost, path, "application/json", body)
	if err != nil {
		c.t.Fatal(err)
	}
	return text
}

type fields = map[string]any

// slices is where EndpointSlices are.
const slicesPath = "/apis/discovery.k8s.io/v1/namespaces/fleet/endpointslices"

// endpoints makes a slice have endpoints: "10.0.0.1", "10.0.0.2 unready", "10.0.0.3
// terminating".
func (c *cluster) endpoints(slice string, list ...string) {
	c.t.Helper()
	var endpoints []fields
	for _, text := range list {
		address, state, _ := strings.Cut(text, " ")
		endpoints = append(endpoints, fields{"addresses": []string{address}, "conditions": fields{
			"ready": state == "", "serving": state != "unready", "terminating": state == "terminating",
		}})
	}
	object := fields{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata":  fields{"name": slice, "labels": fields{"kubernetes.io/service-name": "vllm"}},
		"endpoints": endpoints, "ports": []fields{{"name": "metrics", "port": 9000}, {"name": "http", "port": 8000}},
	}
	body, _ := json.Marshal(object)
	// Server-side apply makes what is not there, and changes what is.
	if _, err := c.try(http.MethodPatch, slicesPath+"/"+slice+"?fieldManager=test&force=true", "application/apply-patch+yaml", body); err != nil {
		c.t.Fatal(err)
	}
}

// account makes a service account that may do nothing, and returns its token.
func (c *cluster) account() string {
	c.t.Helper()
	c.post("/api/v1/namespaces", fields{"metadata": fields{"name": "fleet"}})
	c.post("/api/v1/namespaces/fleet/serviceaccounts", fields{"metadata": fields{"name": "gateway"}})
	var request struct{ Status struct{ Token string } }
	if err := json.Unmarshal(c.post("/api/v1/namespaces/fleet/serviceaccounts/gateway/token", fields{"spec": fields{}}), &request); err != nil {
		c.t.Fatal(err)
	}
	return request.Status.Token
}

// authorize makes a service account that may do what docs/operations.md says, and
// returns its token.
func (c *cluster) authorize() string {
	c.t.Helper()
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		c.t.Fatal(err)
	}
	role := regexp.MustCompile("(?s)```yaml\n(apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\n.*?)```").FindSubmatch(page)
	if role == nil {
		c.t.Fatal("docs/operations.md has no Role")
	}
	token := c.account()
	const rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/fleet/"
	if _, err := c.try(http.MethodPost, rbac+"roles", "application/yaml", role[1]); err != nil {
		c.t.Fatal(err)
	}
	c.post(rbac+"rolebindings", fields{
		"metadata": fields{"name": "gateway"}, "roleRef": fields{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "warmpath-discovery"},
		"subjects": []fields{{"kind": "ServiceAccount", "name": "gateway", "namespace": "fleet"}},
	})
	return token
}

// link is a way to the API server with the rights of a token, as `kubectl proxy` is,
// that can be cut.
type link struct {
	*httptest.Server
	cut   atomic.Bool  // connections break
	brief atomic.Bool  // watches end after two seconds, as they do after minutes
	hold  sync.RWMutex // held to have requests wait
	gone  atomic.Int32 // answers, or events of a watch, of status 410
}

func (c *cluster) link(token string) *link {
	to, err := url.Parse(c.url)
	if err != nil {
		c.t.Fatal(err)
	}
	l := &link{}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), Transport: c.client.Transport,
		ModifyResponse: func(r *http.Response) error {
			if r.StatusCode == http.StatusGone {
				l.gone.Add(1)
			}
			r.Body = &listener{r.Body, l}
			return nil
		},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			if q := r.Out.URL.Query(); l.brief.Load() && q.Get("watch") != "" {
				q.Set("timeoutSeconds", "2")
				r.Out.URL.RawQuery = q.Encode()
			}
			r.Out.Header.Set("Authorization", "Bearer "+token)
		},
	}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if l.cut.Load() {
			panic(http.ErrAbortHandler)
		}
		l.wait()
		proxy.ServeHTTP(w, r)
	}))
	c.t.Cleanup(func() {
		l.CloseClientConnections()
		l.Close()
	})
	return l
}

// wait waits while the link is held.
func (l *link) wait() {
	l.hold.RLock()
	defer l.hold.RUnlock()
}

// listener looks for the event of a watch that says 410 Gone.
type listener struct {
	io.ReadCloser
	l *link
}

func (r *listener) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if bytes.Contains(p[:n], []byte(`"code":410`)) {
		r.l.gone.Add(1)
	}
	return n, err
}

// found is a finder that runs over a source.
type found struct {
	*discovery.Finder
	t    *testing.T
	sets chan string
}

func find(t *testing.T, place string) *found {
	t.Helper()
	f := &found{t: t, sets: make(chan string, 1000)}
	var err error
	if f.Finder, err = discovery.New([]string{place}, slog.New(slog.NewTextHandler(t.Output(), nil))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Run(ctx, func(s discovery.Set) {
			var urls []string
			for _, u := range s.URLs {
				urls = append(urls, u.Host)
			}
			f.sets <- strings.Join(urls, " ")
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return f
}

// want waits for a set.
func (f *found) want(what string, hosts ...string) {
	f.t.Helper()
	began, last := time.Now(), ""
	deadline := time.After(time.Minute)
	for last != strings.Join(hosts, " ") {
		select {
		case last = <-f.sets:
		case <-deadline:
			f.t.Fatalf("%s: the last set is %.200s, want %.200s", what, last, hosts)
		}
	}
	f.t.Logf("%s: %d replicas after %v", what, len(hosts), time.Since(began).Round(time.Millisecond))
}

// TestKubernetes follows the EndpointSlices of a real API server.
func TestKubernetes(t *testing.T) {
	c := newCluster(t)
	l := c.link(c.authorize())
	c.endpoints("one", "10.1.0.1", "10.1.0.2")
	f := find(t, "kubernetes://fleet/vllm:http?api="+l.URL)
	f.want("what is there", "10.1.0.1:8000", "10.1.0.2:8000")
	c.endpoints("two", "10.1.0.4")
	f.want("one more slice", "10.1.0.1:8000", "10.1.0.2:8000", "10.1.0.4:8000")
	c.endpoints("one", "10.1.0.1", "10.1.0.2 unready", "10.1.0.3")
	f.want("one is not ready, one is new", "10.1.0.1:8000", "10.1.0.3:8000", "10.1.0.4:8000")
	c.endpoints("one", "10.1.0.1 terminating", "10.1.0.3")
	f.want("one terminates", "10.1.0.3:8000", "10.1.0.4:8000")
	if _, err := c.try(http.MethodDelete, slicesPath+"/two", "", nil); err != nil {
		t.Fatal(err)
	}
	f.want("a slice is deleted", "10.1.0.3:8000")

	// Cut off for a minute, while things change.
	l.cut.Store(true)
	l.CloseClientConnections()
	eventually(t, time.Minute, "that it is cut off to be noticed", func() error { return f.is(false) })
	c.endpoints("one", "10.1.0.3", "10.1.0.5")
	time.Sleep(time.Minute)
	if len(f.sets) > 0 || f.Status()[0].Replicas != 1 {
		t.Error("the last good set did not stay:", f.Status())
	}
	l.brief.Store(true)
	l.cut.Store(false)
	f.want("after a minute without", "10.1.0.3:8000", "10.1.0.5:8000")
	eventually(t, time.Minute, "it is well again", func() error { return f.is(true) })

	// A watch ends, and before the next one the API server starts again: what it
	// remembers begins after the version that the watch goes on from. 410 Gone.
	l.hold.Lock()
	time.Sleep(4 * time.Second)
	l.brief.Store(false)
	c.endpoints("one", "10.1.0.3", "10.1.0.7")
	c.stop()
	c.start()
	c.endpoints("one", "10.1.0.3", "10.1.0.6")
	l.hold.Unlock()
	f.want("the API server has started again", "10.1.0.3:8000", "10.1.0.6:8000")
	if l.gone.Load() == 0 {
		t.Error("nobody said 410 Gone")
	}

	var hosts []string
	for i := range 5 {
		var list []string
		for j := range 100 {
			address := fmt.Sprintf("10.2.%d.%d", i, j)
			list, hosts = append(list, address), append(hosts, address+":8000")
		}
		c.endpoints(fmt.Sprint("many-", i), list...)
	}
	hosts = append(hosts, "10.1.0.3:8000", "10.1.0.6:8000")
	slices.Sort(hosts)
	f.want("500 more in five slices", hosts...)
}

func (f *found) is(ok bool) error {
	if s := f.Status()[0]; s.OK != ok {
		return fmt.Errorf("%+v", s)
	}
	return nil
}

// TestKubernetesWithoutRights has a service account that may do nothing.
func TestKubernetesWithoutRights(t *testing.T) {
	c := newCluster(t)
	f := find(t, "kubernetes://fleet/vllm:http?api="+c.link(c.account()).URL)
	eventually(t, time.Minute, "that it is forbidden to be noticed", func() error {
		if s := f.Status()[0]; s.OK || s.Failures == 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}
