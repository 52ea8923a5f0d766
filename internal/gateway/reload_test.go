package gateway_test

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/gateway"
)

// settings are those of a gateway under test, for it to load again.
type settings struct {
	mu     sync.Mutex
	change func(*config.Config)
	err    error
	signal chan os.Signal
	level  *slog.LevelVar
}

func (s *settings) set(change func(*config.Config), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change, s.err = change, err
}

// watched runs a gateway that loads its settings again.
func watched(t *testing.T, interval time.Duration, change func(*config.Config), url string) (*gate, *settings) {
	t.Helper()
	s := &settings{change: change, signal: make(chan os.Signal, 1), level: new(slog.LevelVar)}
	var started config.Config
	g := start(t, func(c *config.Config) { change(c); started = *c }, url)
	g.Watch(gateway.Reloading{
		Load: func() (*config.Config, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			c := started
			s.change(&c)
			return &c, s.err
		},
		Signal: s.signal, Level: s.level, Interval: interval,
	})
	return g, s
}

// hup asks for a reload and waits for its end.
func (g *gate) hup(s *settings, result string) {
	g.t.Helper()
	before := g.metric("warmpath_config_reloads_total", "result", result)
	s.signal <- syscall.SIGHUP
	eventually(g.t, "a reload ends as "+result, func() bool { return g.metric("warmpath_config_reloads_total", "result", result) == before+1 })
}

func (g *gate) status(key string) int {
	g.t.Helper()
	return g.get("/v1/models", "Authorization", "Bearer "+key).status
}

const never = time.Hour // between two looks at files

func TestKeysAreTakenOverWithoutARestart(t *testing.T) {
	release := make(chan struct{})
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		s.send(tok("a"))
		if s.wait(release) {
			s.send(finEvent, doneEvent)
		}
	})
	file := keysFile(t, [3]string{"team-a", keyA})
	use := func(c *config.Config) { c.Auth.KeysFile = file }
	g, s := watched(t, never, use, w.url)
	running := g.open(streamReq, "Authorization", "Bearer "+keyA)

	writeKeys(t, file, [3]string{"team-b", keyB})
	if g.status(keyB) != http.StatusUnauthorized {
		t.Error("taken over before it was asked for")
	}
	g.hup(s, "ok")
	if a, b := g.status(keyA), g.status(keyB); a != http.StatusUnauthorized || b != http.StatusOK {
		t.Errorf("after the reload the old key gets %d, the new one %d", a, b)
	}

	for name, text := range map[string]string{
		"bad digest": "keys:\n  - name: team-b\n    sha256: " + marked("key-in-file") + "\n",
		"bad YAML":   "keys: [\"" + marked("key-in-file") + "\n", "empty": "", "cut off": "keys:\n  - name: team-b\n",
	} {
		replaceFile(t, file, text)
		g.hup(s, "error")
		if g.status(keyB) != http.StatusOK {
			t.Errorf("%s: the keys from before are gone", name)
		}
	}
	g.logged("level=ERROR", "those from before stay", file+":3: key team-b: sha256")
	if strings.Contains(g.log.String(), "SECRET") {
		t.Errorf("the log quotes the file:\n%s", g.log)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	g.hup(s, "error")
	g.logged("level=ERROR", "auth.keys_file: open "+file)

	s.set(func(c *config.Config) { c.Auth.KeysFile = "" }, nil)
	g.hup(s, "error") // nobody lets everyone in by mistake
	if g.status("x") != http.StatusUnauthorized {
		t.Error("everyone is let in")
	}
	close(release)
	if got := whole(running); got.err != nil || !strings.HasSuffix(got.body, doneEvent) {
		t.Errorf("the request under way: %v %q", got.err, got.body)
	}
	g.idle()
}

// TestNothingChangesIfOneThingIsBad: with a good file of keys and a bad
// certificate neither is taken over.
func TestNothingChangesIfOneThingIsBad(t *testing.T) {
	a := newAuthority(t)
	w := newWorker(t, answers)
	file := keysFile(t, [3]string{"team-a", keyA})
	cert, key := a.sign("gate", "first")
	use := func(c *config.Config) {
		c.Auth.KeysFile, c.Client.TLSCert, c.Client.TLSKey = file, cert, key
	}
	g, s := watched(t, never, use, w.url)
	shown := func() string {
		c, err := tls.Dial("tcp", strings.TrimPrefix(g.Addr(), "https://"), &tls.Config{RootCAs: a.pool(), ServerName: "127.0.0.1"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	g.trust(a, true)
	before := g.metric("warmpath_config_loaded_timestamp_seconds")
	if before < float64(time.Now().Unix()-60) {
		t.Errorf("loaded at %v", before)
	}
	writeKeys(t, file, [3]string{"team-b", keyB})
	replaceFile(t, key, "no key")
	s.set(func(c *config.Config) { use(c); c.LogLevel = slog.LevelError }, nil)
	g.hup(s, "error")
	g.logged("level=ERROR", "client.tls_cert: certificate "+cert)
	if g.status(keyA) != http.StatusOK || g.status(keyB) != http.StatusUnauthorized || shown() != "first" || s.level.Level() != slog.LevelInfo {
		t.Error("a part was taken over")
	}
	if now := g.metric("warmpath_config_loaded_timestamp_seconds"); now != before {
		t.Errorf("the time of loading went from %v to %v", before, now)
	}
	s.set(use, errors.New("config w.yaml:3: attempts: \"few\" is not a whole number"))
	g.hup(s, "error")
	g.logged("level=ERROR", `config w.yaml:3: attempts`)

	a.sign("gate", "second")
	s.set(func(c *config.Config) { use(c); c.LogLevel = slog.LevelError }, nil)
	g.hup(s, "ok")
	if g.status(keyA) != http.StatusUnauthorized || g.status(keyB) != http.StatusOK || shown() != "second" || s.level.Level() != slog.LevelError {
		t.Errorf("not all was taken over; the certificate is of %q", shown())
	}
}

func TestWhatNeedsARestartIsNamed(t *testing.T) {
	w := newWorker(t, answers)
	g, s := watched(t, never, func(*config.Config) {}, w.url)
	s.set(func(c *config.Config) { c.LogLevel = slog.LevelDebug }, nil)
	g.hup(s, "ok")
	g.logged("settings loaded", "changed=[log_level]")
	if strings.Contains(g.log.String(), "need a restart") {
		t.Error("something needs a restart")
	}
	s.set(func(c *config.Config) {
		c.AdminToken, c.Proxy.Attempts, c.Replica.URLs = marked("token"), 7, []string{"http://127.0.0.1:1"}
		c.DrainDelay, c.Replica.WarmUp, c.Router.MaxWait = time.Hour, false, time.Hour
		c.Proxy.HeaderTimeout, c.Client.HeaderTimeout = time.Hour, time.Hour
	}, nil)
	g.hup(s, "ok")
	g.logged("level=WARN", "need a restart", `settings="[admin_token client.header_timeout drain_delay proxy.attempts proxy.header_timeout replica.urls replica.warm_up router.max_wait]"`)
	if strings.Contains(g.log.String(), marked("token")) {
		t.Error("the log shows the value")
	}
}

// TestTheKeyTowardsReplicasIsTakenOver in probes and in requests.
func TestTheKeyTowardsReplicasIsTakenOver(t *testing.T) {
	w := newWorker(t, answers)
	use := func(c *config.Config) { c.Proxy.ReplicaAuth, c.Replica.Key = "key", "first" }
	g, s := watched(t, never, use, w.url)
	g.must(chatPath, wholeReq)
	s.set(func(c *config.Config) { use(c); c.Replica.Key = "second" }, nil)
	g.hup(s, "ok")
	g.must(chatPath, wholeReq)
	got := w.requests()
	if a, b := got[0].header.Get("Authorization"), got[1].header.Get("Authorization"); a != "Bearer first" || b != "Bearer second" {
		t.Errorf("requests came with %q and %q", a, b)
	}
}

// TestAChangedFileIsTakenOver, also when a link is swapped, as Kubernetes does.
func TestAChangedFileIsTakenOver(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, file string){
		"replaced": func(t *testing.T, file string) { writeKeys(t, file, [3]string{"team-b", keyB}) },
		"written in place": func(t *testing.T, file string) {
			writeKeys(t, file+".b", [3]string{"team-b", keyB})
			text, err := os.ReadFile(file + ".b")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, text, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"link swapped": func(t *testing.T, file string) {
			dir := filepath.Dir(file)
			if err := os.Mkdir(filepath.Join(dir, "..2"), 0o700); err != nil {
				t.Fatal(err)
			}
			writeKeys(t, filepath.Join(dir, "..2", "keys.yaml"), [3]string{"team-b", keyB})
			if err := os.Symlink("..2", filepath.Join(dir, "..tmp")); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "keys.yaml")
			if name == "link swapped" {
				if err := errors.Join(os.Mkdir(filepath.Join(dir, "..1"), 0o700), os.Symlink("..1", filepath.Join(dir, "..data")), os.Symlink(filepath.Join("..data", "keys.yaml"), file)); err != nil {
					t.Fatal(err)
				}
				writeKeys(t, filepath.Join(dir, "..1", "keys.yaml"), [3]string{"team-a", keyA})
			} else {
				writeKeys(t, file, [3]string{"team-a", keyA})
			}
			w := newWorker(t, answers)
			g, _ := watched(t, 5*time.Millisecond, func(c *config.Config) { c.Auth.KeysFile = file }, w.url)
			if g.status(keyA) != http.StatusOK {
				t.Fatal("the first key lets nobody in")
			}
			change(t, file)
			eventually(t, "the file is taken over", func() bool { return g.status(keyB) == http.StatusOK && g.status(keyA) == http.StatusUnauthorized })
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			g.logged("level=ERROR", "auth.keys_file: open "+file)
			if n := g.metric("warmpath_config_reloads_total", "result", "ok"); n != 1 {
				t.Errorf("loaded %v times", n)
			}
		})
	}
}

// TestReloadsUnderLoadLoseNothing: requests go on while keys come and go.
func TestReloadsUnderLoadLoseNothing(t *testing.T) {
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		newStream(t, w, r).send(roleEvent, tok("a"), finEvent, doneEvent)
	})
	file := keysFile(t, [3]string{"team-a", keyA, ", max_requests: 50"})
	g, s := watched(t, never, func(c *config.Config) { c.Auth.KeysFile = file }, w.url)
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				resp, err := g.do(chatPath, []byte(streamReq), "Authorization", "Bearer "+keyA)
				if err != nil {
					t.Error(err)
					return
				}
				if a := whole(resp); a.status != http.StatusOK || a.err != nil {
					t.Errorf("%d %v %s", a.status, a.err, a.body)
					return
				}
			}
		})
	}
	for i := range 20 {
		entries := [][3]string{{"team-a", keyA, ", max_requests: 50"}}
		if i%2 == 0 {
			entries = append(entries, [3]string{"team-b", keyB})
		}
		writeKeys(t, file, entries...)
		g.hup(s, "ok")
	}
	close(stop)
	clients.Wait()
	if n := g.metric("warmpath_key_inflight") + g.metric("warmpath_key_pending_tokens"); n != 0 {
		t.Errorf("%v are still counted", n)
	}
	g.idle()
}

// TestStartsOnlyWithFilesThatCanBeUsed: what a reload would refuse, a start does,
// and so does -check.
func TestStartsOnlyWithFilesThatCanBeUsed(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.sign("gate", "gate")
	_, otherKey := newAuthority(t).sign("gate", "gate")
	for want, change := range map[string]func(*config.Config){
		"auth.keys_file: open none":                        func(c *config.Config) { c.Auth.KeysFile = "none" },
		"client.tls_cert: certificate none with key none":  func(c *config.Config) { c.Client.TLSCert, c.Client.TLSKey = "none", "none" },
		"private key does not match public key":            func(c *config.Config) { c.Client.TLSCert, c.Client.TLSKey = cert, otherKey },
		"replica.tls_cert: certificate none with key":      func(c *config.Config) { c.Replica.TLSCert, c.Replica.TLSKey = "none", key },
		"replica.tls_ca: " + key + " holds no certificate": func(c *config.Config) { c.Replica.TLSCA = key },
	} {
		cfg := config.Default()
		cfg.Listen, cfg.Admin, cfg.Replica.URLs = "127.0.0.1:0", "127.0.0.1:0", []string{"http://127.0.0.1:1"}
		change(cfg)
		_, err := gateway.New(cfg, slog.New(slog.DiscardHandler))
		for what, err := range map[string]error{"start": err, "check": gateway.Check(cfg)} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %s", what, err, want)
			}
		}
	}
	cfg := config.Default()
	cfg.Client.TLSCert, cfg.Client.TLSKey, cfg.Replica.TLSCA = cert, key, a.file
	if err := gateway.Check(cfg); err != nil {
		t.Error(err)
	}
}
