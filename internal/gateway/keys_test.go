package gateway_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/mockvllm"
)

// API keys of tests.
const (
	keyA = "sk-team-a-0123456789abcdef"
	keyB = "sk-team-b-0123456789abcdef"
)

// keysFile writes a file of keys, given as name, key and more members of an entry.
func keysFile(t testing.TB, entries ...[3]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.yaml")
	writeKeys(t, path, entries...)
	return path
}

func writeKeys(t testing.TB, path string, entries ...[3]string) {
	t.Helper()
	text := "keys:\n"
	for _, e := range entries {
		text += fmt.Sprintf("  - {name: %s, sha256: %x%s}\n", e[0], sha256.Sum256([]byte(e[1])), e[2])
	}
	replaceFile(t, path, text)
}

// replaceFile changes a file at once, as tools do that know that it is read.
func replaceFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func twoKeys(t testing.TB, more string) func(*config.Config) {
	return func(c *config.Config) {
		c.Auth.KeysFile = keysFile(t, [3]string{"team-a", keyA, more}, [3]string{"team-b", keyB})
	}
}

// TestWhoHasNoKeyLearnsNothing: the same answer for all there is and is not.
func TestWhoHasNoKeyLearnsNothing(t *testing.T) {
	w := newWorker(t, answers)
	g := start(t, twoKeys(t, ""), w.url)
	var first, firstMessages string
	f := func(method, path, body string, header ...string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, g.Addr()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Request-Id", "r1")
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := g.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		a := whole(resp)
		a.header.Del("Date")
		got := fmt.Sprint(a.status, a.header, a.body)
		want := &first
		if strings.HasPrefix(path, "/v1/messages") {
			want = &firstMessages
		}
		if *want == "" {
			*want = got
		}
		if got != *want || a.status != http.StatusUnauthorized {
			t.Errorf("%s %s %q: %s\nwant %s", method, path, header, got, *want)
		}
	}
	for _, path := range append([]string{
		"/", "/v1/models", "/v1/models/m1", "/v1/models/m2", "/nothing", "/metrics", "/replicas", "/healthz", "/readyz", "/health", "/debug/pprof/",
		"/v1/responses/resp_1", "/v1/messages/nothing", "//v1/models", "/v1/models/", "/%2e%2e/v1/models", "/" + strings.Repeat("x", 10000),
	}, forwarded...) {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete, http.MethodOptions} {
			f(method, path, wholeReq)
		}
		f(http.MethodPost, path, "not JSON", "Authorization", "Bearer "+keyA+"x")
		f(http.MethodPost, path, `{"model":"m2"}`, "X-Api-Key", "wrong", "Cookie", keyA)
	}
	if n := len(w.requests()); n > 0 {
		t.Errorf("%d requests reached the replica", n)
	}
	for _, told := range []string{w.id, "m1", "m2", "replica", "vllm", "model"} {
		if text := first + firstMessages; strings.Contains(strings.ToLower(text), told) {
			t.Errorf("it tells %q: %s", told, text)
		}
	}
	if e := parse(t, first[strings.Index(first, "{"):]); e.text("error", "code") != "invalid_api_key" || e.text("error", "message") == "" || e.at("type") != nil {
		t.Errorf("not OpenAI's form: %s", first)
	}
	if e := parse(t, firstMessages[strings.Index(firstMessages, "{"):]); e.text("type") != "error" || e.text("error", "type") != "authentication_error" {
		t.Errorf("not Anthropic's form: %s", firstMessages)
	}
	if n := g.metric("warmpath_refused_total", "reason", "unauthorized"); n == 0 {
		t.Error("they are not counted")
	}
	g.idle()
}

func TestKeysLetInAndAreCountedByName(t *testing.T) {
	w := newWorker(t, answers)
	g := start(t, twoKeys(t, ""), w.url)
	g.must(chatPath, wholeReq, "Authorization", "Bearer "+keyA)
	g.must("/v1/messages", `{"model":"m1","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`, "x-api-key", keyB)
	g.must("/v1/embeddings", `{"model":"m1","input":"hi"}`, "api-key", keyB)
	if a := g.get("/v1/models", "Authorization", "Bearer "+keyA); a.status != http.StatusOK || !strings.Contains(a.body, `"m1"`) {
		t.Errorf("models: %d %s", a.status, a.body)
	}
	if a := g.ask(chatPath, `{"model":"m2","messages":[]}`, "Authorization", "Bearer "+keyA); a.status != http.StatusNotFound {
		t.Errorf("unknown model: %d", a.status)
	}
	for _, c := range []struct {
		key, class string
		want       float64
	}{{"team-a", "2xx", 1}, {"team-a", "4xx", 1}, {"team-b", "2xx", 2}, {"team-b", "4xx", 0}} {
		if n := g.metric("warmpath_key_requests_total", "key", c.key, "class", c.class); n != c.want {
			t.Errorf("%s %s: %v, want %v", c.key, c.class, n, c.want)
		}
	}
	g.logged("msg=request", "key=team-a", "status=200")
	g.logged("msg=request", "key=team-b", "path=/v1/messages")
}

// TestWhatReplicasSeeOfKeys is the one documented setting: replica_auth.
func TestWhatReplicasSeeOfKeys(t *testing.T) {
	sent := []string{"Authorization", "Bearer " + keyA, "X-Api-Key", keyA, "Api-Key", keyA, "Cookie", "session=" + keyA, "X-Other", "stays"}
	all := map[string]string{"Authorization": "Bearer " + keyA, "X-Api-Key": keyA, "Api-Key": keyA, "Cookie": "session=" + keyA}
	own := map[string]string{"Authorization": "Bearer replica-key"}
	f := func(name, mode, replicaKey string, keys bool, want map[string]string) {
		t.Run(name, func(t *testing.T) {
			w := newWorker(t, answers)
			g := start(t, func(c *config.Config) {
				if keys {
					twoKeys(t, "")(c)
				}
				c.Proxy.ReplicaAuth, c.Replica.Key = mode, replicaKey
			}, w.url)
			for _, path := range []string{chatPath, "/v1/embeddings", "/tokenize"} {
				g.must(path, wholeReq, sent...)
			}
			if a := g.get("/v1/responses/resp_1", sent...); a.status != http.StatusOK {
				t.Errorf("status %d", a.status)
			}
			got := w.requests()
			if len(got) != 4 {
				t.Fatalf("%d requests", len(got))
			}
			for _, r := range got {
				for name := range all {
					if r.header.Get(name) != want[name] {
						t.Errorf("%s: %s is %q, want %q", r.uri, name, r.header.Get(name), want[name])
					}
				}
				if r.header.Get("X-Other") != "stays" {
					t.Errorf("%s: another header is gone", r.uri)
				}
			}
		})
	}
	f("nobody is checked here", "auto", "", false, all)
	f("nobody is checked here, probes have a key", "auto", "replica-key", false, all)
	f("checked here", "auto", "", true, nil)
	f("checked here, replicas have a key", "auto", "replica-key", true, own)
	f("passed on although checked", "client", "replica-key", true, all)
	f("replaced although not checked", "key", "replica-key", false, own)
	f("kept back although not checked", "none", "replica-key", false, nil)
	f("kept back", "none", "replica-key", true, nil)
}

func TestKeysHaveLimitsOfTheirOwn(t *testing.T) {
	release := make(chan struct{})
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		s.send(roleEvent)
		if s.wait(release) {
			s.send(tok("a"), finEvent, doneEvent)
		}
	})
	g := start(t, twoKeys(t, ", max_requests: 2"), w.url)
	bearer := func(key string) []string { return []string{"Authorization", "Bearer " + key} }
	one := g.open(streamReq, bearer(keyA)...)
	_ = g.open(streamReq, bearer(keyA)...)
	for _, path := range []string{chatPath, "/v1/embeddings"} {
		a := g.ask(path, wholeReq, bearer(keyA)...)
		if e := parse(t, a.body); a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") != "1" || e.text("error", "code") != "key_limit" || !strings.Contains(e.text("error", "message"), "2 requests under way, its max_requests") {
			t.Errorf("%s: %d %v %s", path, a.status, a.header, a.body)
		}
	}
	_ = g.open(streamReq, bearer(keyB)...) // another's limit
	if n := g.metric("warmpath_key_inflight", "key", "team-a"); n != 2 {
		t.Errorf("%v in flight", n)
	}
	if n := g.metric("warmpath_refused_total", "reason", "key_requests"); n != 2 {
		t.Errorf("%v refused", n)
	}
	_ = one.Body.Close() // the client leaves
	eventually(t, "its place is free", func() bool { return g.metric("warmpath_key_inflight", "key", "team-a") == 1 })
	next := g.open(streamReq, bearer(keyA)...)
	if next.StatusCode != http.StatusOK {
		t.Errorf("status %d after a place was free", next.StatusCode)
	}
	close(release)
	eventually(t, "nothing is under way", func() bool {
		return g.metric("warmpath_key_inflight") == 0 && g.metric("warmpath_key_pending_tokens") == 0
	})
	g.idle()
}

func TestKeysHaveLimitsOnWhatWaits(t *testing.T) {
	first, rest := make(chan struct{}), make(chan struct{})
	w := newWorker(t, func(w http.ResponseWriter, r *http.Request) {
		s := newStream(t, w, r)
		s.send()
		if s.wait(first) {
			s.send(tok("a"))
		}
		if s.wait(rest) {
			s.send(finEvent, doneEvent)
		}
	})
	g := start(t, twoKeys(t, ", max_pending_tokens: 1000"), w.url)
	bearer := []string{"Authorization", "Bearer " + keyA}
	long := fmt.Sprintf(`{"model":"m1","stream":true,"messages":[{"role":"user","content":%q}]}`, words(1, 20000))
	done := make(chan *http.Response)
	ask := func() {
		resp, err := g.do(chatPath, []byte(long), bearer...)
		if err != nil {
			t.Error(err)
		}
		done <- resp
	}
	go ask()
	eventually(t, "a prompt that waits alone is let in, however long", func() bool { return g.metric("warmpath_key_pending_tokens", "key", "team-a") > 1000 })
	a := g.ask(chatPath, wholeReq, bearer...)
	if a.status != http.StatusTooManyRequests || !strings.Contains(a.body, "more than 1000 tokens, its max_pending_tokens") {
		t.Errorf("the next: %d %s", a.status, a.body)
	}
	if n := g.metric("warmpath_refused_total", "reason", "key_tokens"); n != 1 {
		t.Errorf("%v refused", n)
	}
	close(first)
	resp := receive(t, "the answer's head", done)
	defer resp.Body.Close()
	eventually(t, "the prefill is over, the answer is not", func() bool {
		return g.metric("warmpath_key_pending_tokens") == 0 && g.metric("warmpath_key_inflight", "key", "team-a") == 1
	})
	again := g.open(streamReq, bearer...)
	if again.StatusCode != http.StatusOK {
		t.Errorf("status %d when nothing waits", again.StatusCode)
	}
	close(rest)
	eventually(t, "nothing is under way", func() bool { return g.metric("warmpath_key_inflight") == 0 })
	g.idle()
}

// TestTenantsCannotFindOutWhatOthersSent: with salts of their own a prompt that
// another has sent is not in the cache, and the gateway does not believe it to be.
func TestTenantsCannotFindOutWhatOthersSent(t *testing.T) {
	prompt := words(1, 8000)
	bodies := map[string]string{
		chatPath:          `{"model":"mock","max_tokens":2,"messages":[{"role":"user","content":` + quote(prompt) + `}]}`,
		"/v1/completions": `{"model":"mock","max_tokens":2,"prompt":` + quote(prompt) + "} \n",
		"/v1/responses":   `{"model":"mock","max_output_tokens":2,"input":` + quote(prompt) + `}`,
		"/v1/messages":    `{"model":"mock","max_tokens":2,"messages":[{"role":"user","content":` + quote(prompt) + `}]}`,
	}
	cached := func(path string, a answer) int {
		usage := parse(t, a.body)
		switch path {
		case "/v1/messages":
			return usage.number("usage", "cache_read_input_tokens")
		case "/v1/responses":
			return usage.number("usage", "input_tokens_details", "cached_tokens")
		}
		return usage.number("usage", "prompt_tokens_details", "cached_tokens")
	}
	for path, body := range bodies {
		t.Run(strings.ReplaceAll(path[1:], "/", "-"), func(t *testing.T) {
			_, urls := mocks(t, 1, func(c *mockvllm.Config) { c.PromptTokensDetails = true })
			g := start(t, func(c *config.Config) {
				c.Auth.SaltSecret = "0123456789abcdef"
				c.Auth.KeysFile = keysFile(t, [3]string{"team-a", keyA, ", cache_salt: auto"}, [3]string{"team-b", keyB, ", cache_salt: auto"})
			}, urls...)
			f := func(key string, hit bool) {
				t.Helper()
				a := g.must(path, body, "Authorization", "Bearer "+key)
				predicted, _ := a.predicted()
				if got := cached(path, a); (got > 0) != hit || (predicted > 0) != hit {
					t.Errorf("%d tokens cached, %d predicted; a hit: %v", got, predicted, hit)
				}
			}
			f(keyA, false)
			f(keyA, true)
			f(keyB, false)
			f(keyB, true)
		})
	}
}

// TestASaltIsAddedAndNothingElse looks at the bytes.
func TestASaltIsAddedAndNothingElse(t *testing.T) {
	w := newWorker(t, answers)
	g := start(t, func(c *config.Config) {
		c.Auth.KeysFile = keysFile(t, [3]string{"team-a", keyA, ", cache_salt: pepper"}, [3]string{"team-b", keyB})
	}, w.url)
	const salt = `,"cache_salt":"pepper"`
	f := func(path, before, after, salt, key string) {
		t.Helper()
		for _, chunked := range []bool{false, true} {
			var body io.Reader = strings.NewReader(before + after)
			if chunked {
				body = io.MultiReader(body)
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.Addr()+path, body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+key)
			resp, err := g.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if a := whole(resp); a.status != http.StatusOK {
				t.Fatalf("%s: %d %s", path, a.status, a.body)
			}
			got := w.requests()
			r := got[len(got)-1]
			if want := before + salt + after; r.body != want || r.length != int64(len(want)) || r.chunked {
				t.Errorf("%s: got %d bytes (length %d) …%.200s, want %d …%.200s", path, len(r.body), r.length, r.body[max(0, len(r.body)-200):], len(want), want[max(0, len(want)-200):])
			}
		}
	}
	const turns = `"messages":[{"role":"user","content":"}\"{"}]`
	f(chatPath, `{"model":"m1",`+turns, `}`, salt, keyA)
	f(chatPath, " \r\n{\"model\" : \"m1\" , "+turns+" \n", "}\t \r\n", salt, keyA)
	f("/v1/completions", `{"prompt":"}","model":"m1"`, "}  ", salt, keyA)
	f("/v1/responses", `{"input":"}","model":"m1"`, "}", salt, keyA)
	f("/v1/messages", `{"model":"m1",`+turns, "}", salt, keyA)
	f(chatPath, `{"model":"m1","cache_salt":null,`+turns, "}", salt, keyA)                  // the last one counts
	f(chatPath, `{"model":"m1","cache_salt":"x","cache_salt":null,`+turns, "}", salt, keyA) // as it does here
	f(chatPath, `{"model":"m1","cache_salt":"own",`+turns, "}", "", keyA)
	f(chatPath, `{"model":"m1","cache_salt":"",`+turns, "}", "", keyA) // the engine refuses it
	f(chatPath, `{"model":"m1","metadata":{"cache_salt":"x"},`+turns, "}", salt, keyA)
	f(chatPath, `{"model":"m1",`+turns, "}", "", keyB)
	for _, path := range []string{"/v1/embeddings", "/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score", "/pooling", "/classify"} {
		f(path, `{"model":"m1","input":"x"`, "}", salt, keyA)
		f(path, "{ \n", "}\n", salt[1:], keyA)
		f(path, `{"model":"m1","cache_salt":"own"`, "}", "", keyA)
	}
	for _, path := range []string{"/v2/embed", "/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/responses/resp_1/cancel"} {
		f(path, `{"model":"m1","input":"x"`, "}", "", keyA)
	}
	for _, size := range []int{4<<10 - 30, 4 << 10, 64<<10 - 3, 2<<20 - 5, 3 << 20} { // where memory for bodies ends
		before := `{"model":"m1","pad":"`
		f(chatPath, before+strings.Repeat("x", size-len(before)-len(turns)-3)+`",`+turns, "}", salt, keyA)
	}
}

// TestEveryWayToAReplicaCarriesItsKey: probes, the request of a warm-up, an attempt
// made again and one at a replica that is down, and the client's own key on none.
func TestEveryWayToAReplicaCarriesItsKey(t *testing.T) {
	var breaks atomic.Int32 // requests that fail next
	ways := func() *worker {
		w := &worker{}
		inner := w.handler(func(rw http.ResponseWriter, r *http.Request) {
			if breaks.Add(-1) >= 0 {
				reset(rw)
				return
			}
			answers(rw, r)
		})
		w.server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if got := r.Header.Get("Authorization"); got != "Bearer replica-key" || r.Header.Get("X-Api-Key") != "" {
				t.Errorf("%s %s came with %q", r.Method, r.URL.Path, r.Header)
			}
			inner.ServeHTTP(rw, r)
		}))
		t.Cleanup(w.server.Close)
		w.url = w.server.URL
		return w
	}
	one, two := ways(), ways()
	g := start(t, func(c *config.Config) {
		twoKeys(t, "")(c)
		c.Replica.Key = "replica-key"
	}, one.url, two.url)
	if one.warmUps.Load() == 0 || two.warmUps.Load() == 0 {
		t.Error("there was no warm-up")
	}
	breaks.Store(1)
	g.must(chatPath, wholeReq, "X-Api-Key", keyA)
	if n := len(one.requests()) + len(two.requests()); n != 2 {
		t.Errorf("%d attempts", n)
	}
	one.sick.Store(true)
	two.sick.Store(true)
	eventually(t, "both are down", func() bool { return g.metric("warmpath_replica_up") == 0 })
	g.must(chatPath, wholeReq, "X-Api-Key", keyA)
	g.idle()
}

// TestKeysGetBackWhatTheyHeldHoweverARequestEnds.
func TestKeysGetBackWhatTheyHeldHoweverARequestEnds(t *testing.T) {
	failed := `data: {"error":{"message":"m","code":500}}` + "\n\n"
	silent := func(s *stream) { <-s.r.Context().Done() }
	for name, f := range map[string]struct {
		handler func(*stream)
		req     string // of a client that reads, else of one that does not
		sent    int    // bytes of a request that is not sent whole
	}{
		"an error first":         {func(s *stream) { s.send(failed) }, streamReq, 0},
		"an empty stream":        {func(s *stream) { s.send("") }, streamReq, 0},
		"nothing comes":          {silent, streamReq, 0},
		"nothing comes as whole": {silent, wholeReq, 0},
		"a head and nothing":     {func(s *stream) { s.send(""); silent(s) }, streamReq, 0},
		"silence behind a token": {func(s *stream) { s.send(roleEvent, tok("a")); silent(s) }, streamReq, 0},
		"a reset":                {func(s *stream) { reset(s.w) }, streamReq, 0},
		"a reset behind a token": {func(s *stream) { s.send(tok("a")); reset(s.w) }, streamReq, 0},
		"busy":                   {func(s *stream) { s.w.WriteHeader(http.StatusTooManyRequests) }, streamReq, 0},
		"no model":               {silent, `{"model":"m2","messages":[]}`, 0},
		"no JSON":                {silent, `{"model"`, 0},
		"a client does not read": {func(s *stream) {
			for event := tok(strings.Repeat("x", 32<<10)); s.r.Context().Err() == nil; {
				s.send(event)
			}
		}, "", len(streamReq)},
		"an upload that stops": {silent, "", 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handler := func(w http.ResponseWriter, r *http.Request) { f.handler(newStream(t, w, r)) }
			one, two := newWorker(t, handler), newWorker(t, handler)
			g := start(t, func(c *config.Config) {
				twoKeys(t, ", max_requests: 1, max_pending_tokens: 100000")(c)
				c.Proxy.HeaderTimeout, c.Proxy.EventTimeout = 200*time.Millisecond, 200*time.Millisecond
				c.Proxy.UploadTimeout, c.Proxy.WriteTimeout = 200*time.Millisecond, 200*time.Millisecond
			}, one.url, two.url)
			if f.req != "" {
				g.ask(chatPath, f.req, "X-Api-Key", keyA)
			} else {
				head := strings.Replace(post(len(streamReq), streamReq[:f.sent]), "Host: g", "Host: g\r\nX-Api-Key: "+keyA, 1)
				_ = g.raw(head)
				eventually(t, "it is under way", func() bool { return g.metric("warmpath_key_inflight", "key", "team-a") == 1 })
			}
			eventually(t, "all is given back", func() bool {
				return g.metric("warmpath_key_inflight") == 0 && g.metric("warmpath_key_pending_tokens") == 0 && g.metric("warmpath_inflight") == 0
			})
			g.idle()
		})
	}
}

// TestRequestsThatComeToNoReplicaEarnNoRetries: who is refused could else pay for the
// attempts of a fleet that is failing.
func TestRequestsThatComeToNoReplicaEarnNoRetries(t *testing.T) {
	w := newWorker(t, answers)
	busy := newWorker(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	g := start(t, func(c *config.Config) { c.Router.Policy = "round-robin" }, w.url, busy.url)
	eventually(t, "an attempt is made again", func() bool {
		g.must(chatPath, wholeReq)
		return g.metric("warmpath_retries_total") > 0
	})
	before := g.metric("warmpath_retry_budget")
	for range 20 {
		g.ask(chatPath, `{"model":"m2","messages":[]}`)
	}
	if left := g.metric("warmpath_retry_budget"); left != before {
		t.Errorf("%v attempts are left, %v were", left, before)
	}
}

// TestErrorsUnderMessagesHaveAnthropicsForm, whether there is such an endpoint or not.
func TestErrorsUnderMessagesHaveAnthropicsForm(t *testing.T) {
	w := newWorker(t, answers)
	g := start(t, nil, w.url)
	for _, path := range []string{"/v1/messages", "/v1/messages/count_tokens", "/v1/messages/nothing"} {
		if got := g.ask(path, `{"model"`); parse(t, got.body).text("type") != "error" {
			t.Errorf("POST %s: %s", path, got.body)
		}
		if got := g.get(path); parse(t, got.body).text("type") != "error" {
			t.Errorf("GET %s: %s", path, got.body)
		}
	}
	if got := g.ask(chatPath, `{"model"`); strings.HasPrefix(got.body, `{"type"`) {
		t.Errorf("elsewhere: %s", got.body)
	}
}

// TestAFormIsNotSalted: it has no members, and no byte of it is changed.
func TestAFormIsNotSalted(t *testing.T) {
	w := newWorker(t, answers)
	g := start(t, func(c *config.Config) {
		c.Auth.KeysFile = keysFile(t, [3]string{"team-a", keyA, ", cache_salt: pepper"})
	}, w.url)
	for _, text := range []string{"x", "a } b"} {
		body := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm1\r\n--b\r\nContent-Disposition: form-data; name=\"t\"\r\n\r\n" + text + "\r\n--b--\r\n"
		a := g.ask(chatPath, body, "Authorization", "Bearer "+keyA, "Content-Type", "multipart/form-data; boundary=b")
		seen := w.requests()
		if a.status != http.StatusOK || len(seen) == 0 || seen[len(seen)-1].body != body {
			t.Errorf("%q: status %d, the replica got %v", text, a.status, seen)
		}
	}
	g.idle()
}
