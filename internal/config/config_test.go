package config

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/warmpath/warmpath/internal/auth"
)

// load loads the settings as the command does; vars are NAME=value.
func load(args []string, vars ...string) (*Config, error) {
	return Load(args, func(name string) (string, bool) {
		for _, v := range vars {
			if n, value, _ := strings.Cut(v, "="); n == name {
				return value, true
			}
		}
		return "", false
	}, io.Discard)
}

func write(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "w.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadsGoodFiles(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"empty": func(*Config) {}, "comments": func(*Config) {},
		"full": func(c *Config) {
			c.Listen, c.Admin, c.AdminToken, c.LogLevel, c.DrainTimeout = "127.0.0.1:80", "[::1]:9090", `a "secret"`, slog.LevelDebug, 90*time.Second
			c.Client = Client{TLSCert: "tls.crt", TLSKey: "tls.key", MaxConnections: 100, MaxHeaderBytes: 1 << 14, HeaderTimeout: time.Second, MaxStreams: 10}
			c.Auth = auth.Config{KeysFile: "keys.yaml", SaltSecret: "0123456789abcdef"}
			c.Replica.TLSCA, c.Replica.TLSCert, c.Replica.TLSKey, c.Replica.TLSServerName = "ca.crt", "r.crt", "r.key", "vllm"
			c.Proxy.MaxURLBytes, c.Proxy.ReplicaAuth = 1024, "key"
			c.Replica.URLs = []string{"http://10.0.0.1:8000", "https://vllm.example/team/a"}
			c.Replica.Key, c.Replica.ProbeInterval, c.Replica.ProbeTimeout, c.Replica.ScrapeInterval = "sk-1", 500*time.Millisecond, time.Second, 10*time.Second
			c.Router.Policy, c.Router.IndexBytes, c.Router.SessionSlack, c.Router.DecodeTokens = "least-tokens", 1<<30, 0, 0
			c.Proxy.MaxBodyBytes, c.Proxy.Attempts, c.Proxy.ConnectTimeout, c.Proxy.PolicyHeader, c.Proxy.DecisionHeaders = 1<<20, 1, 250*time.Millisecond, true, true
		},
		"flow": func(c *Config) {
			c.Replica.URLs, c.LogLevel, c.Router.IndexBytes = []string{"http://a:1", "http://b:1"}, slog.LevelWarn, 1<<20
		},
		"nothing-below": func(c *Config) { c.Replica.URLs = []string{"http://a:1"} },
		"one-url":       func(c *Config) { c.Replica.URLs = []string{"http://a:1"} },
		"document":      func(c *Config) { c.Listen = ":81" },
		"crlf":          func(c *Config) { c.Listen, c.Router.Policy = ":81", "random" },
	} {
		want := Default()
		want.File = filepath.Join("testdata", name+".good.yaml")
		change(want)
		args := []string{"-config", filepath.Join("testdata", name+".good.yaml")}
		if len(want.Replica.URLs) == 0 {
			want.Replica.URLs = []string{"http://x:1"}
			args = append(args, "-replica", "http://x:1")
		}
		got, err := load(args)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, got, want)
		}
	}
	if files, _ := filepath.Glob("testdata/*.good.yaml"); len(files) != 8 {
		t.Errorf("%d good files, of which 8 are tested", len(files))
	}
}

func TestRefusesBadFilesAndSaysWhatAndWhere(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		want, err := os.ReadFile(strings.TrimSuffix(file, ".bad.yaml") + ".error")
		if err != nil {
			t.Fatal(err)
		}
		_, err = load([]string{"-config", file, "-replica", "http://x:1"})
		if err == nil {
			t.Errorf("%s: accepted", file)
			continue
		}
		first, _, _ := strings.Cut(err.Error(), "\n") // an excerpt of the file may follow
		if first != "config "+file+strings.TrimSpace(string(want)) {
			t.Errorf("%s:\ngot  %s\nwant config %[1]s%s", file, first, want)
		}
	}
	if _, err := load([]string{"-config", "testdata/none.yaml"}); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "testdata/none.yaml") {
		t.Error(err)
	}
}

func TestFlagsOverrideEnvironmentOverridesFileOverridesDefaults(t *testing.T) {
	path := write(t, "listen: file:1\nreplica:\n  urls: [http://file:1, http://file:2]\n  probe_interval: 7s\nproxy:\n  decision_headers: true\n")
	file := []string{"-config", path}
	for _, c := range []struct {
		args, vars   []string
		listen, urls string
		interval     time.Duration
		attempts     int
		decisions    bool
		level        slog.Level
	}{
		{file, nil, "file:1", "http://file:1,http://file:2", 7 * time.Second, 3, true, slog.LevelInfo},
		{nil, []string{"WARMPATH_CONFIG=" + path}, "file:1", "http://file:1,http://file:2", 7 * time.Second, 3, true, slog.LevelInfo},
		{
			file,
			[]string{"WARMPATH_LISTEN=env:1", "WARMPATH_REPLICA=http://env:1 http://env:2,http://env:3", "WARMPATH_LOG_LEVEL=error", "WARMPATH_DECISION_HEADERS=false"},
			"env:1", "http://env:1,http://env:2,http://env:3", 7 * time.Second, 3, false, slog.LevelError,
		},
		{
			append(file, "-listen", "flag:1", "-replica", "http://flag:1", "-replica=http://flag:2", "-probe-interval", "9s", "-decision-headers=false", "-attempts", "2"),
			[]string{"WARMPATH_LISTEN=env:1", "WARMPATH_REPLICA=http://env:1", "WARMPATH_PROBE_INTERVAL=8s", "WARMPATH_ATTEMPTS=4", "WARMPATH_CONFIG=nowhere"},
			"flag:1", "http://flag:1,http://flag:2", 9 * time.Second, 2, false, slog.LevelInfo,
		},
		{
			file,
			[]string{"WARMPATH_LISTEN=", "WARMPATH_REPLICA=", "WARMPATH_ATTEMPTS=", "WARMPATH_PORT=tcp://10.0.0.1:80"},
			"file:1", "http://file:1,http://file:2", 7 * time.Second, 3, true, slog.LevelInfo,
		},
		{[]string{"-replica", "http://flag:1,http://flag:2"}, nil, ":8080", "http://flag:1,http://flag:2", 2 * time.Second, 3, false, slog.LevelInfo},
	} {
		got, err := load(c.args, c.vars...)
		if err != nil {
			t.Errorf("%v %v: %v", c.args, c.vars, err)
			continue
		}
		if got.Listen != c.listen || strings.Join(got.Replica.URLs, ",") != c.urls || got.Replica.ProbeInterval != c.interval ||
			got.Proxy.Attempts != c.attempts || got.Proxy.DecisionHeaders != c.decisions || got.LogLevel != c.level {
			t.Errorf("%v %v: got %+v", c.args, c.vars, got)
		}
	}
}

func TestRefusesWhatCannotWorkAndSaysWhatToDo(t *testing.T) {
	for _, c := range []struct {
		args string
		vars []string
		want string
	}{
		{"", nil, "-replica http://host:port"},
		{"http://a:1", nil, `unexpected argument "http://a:1": settings are flags`},
		{"-replica http://a:1 http://b:1", nil, `unexpected argument "http://b:1"`},
		{"-replicas http://a:1", nil, "-replicas (-h lists the flags)"},
		{"-attempts few", nil, `invalid value "few" for flag -attempts: parse error (-h`},
		{"-log-level loud", nil, `invalid value "loud" for flag -log-level`},
		{"-replica a:1", nil, `replica "a:1" is not a URL`},
		{"-replica http://a:1 -attempts 0", nil, "attempts must be at least 1"},
		{"-replica http://a:1 -redis http://r:1", nil, "redis: the URL must begin with redis:// or rediss://"},
		{"-replica http://a:1 -redis redis://r:1 -redis-namespace {a}", nil, "redis.namespace"},
		{"-replica http://a:1 -redis-channels all", nil, "redis.channels must be both, load or prefix"},
		{"-replica http://a:1 -warm-start -1s", nil, "warm_start must not be negative"},
		{"-replica http://a:1 -policy fastest", nil, "policy: "},
		{"-replica http://a:1 -index-bytes 5", nil, "index_bytes must be at least 1 MiB"},
		{"-replica http://a:1 -probe-timeout 0s", nil, "probe_timeout must be above 0"},
		{"-replica http://a:1 -drain-timeout -1s", nil, "drain_timeout must not be negative"},
		{"-replica http://a:1 -listen 8080", nil, `listen "8080" is not an address: write host:port`},
		{"-replica http://a:1 -admin localhost", nil, `admin "localhost" is not an address`},
		{"-replica http://a:1 -drain-delay -1s", nil, "drain_delay must not be negative"},
		{"-replica http://a:1 -max-wait -1s", nil, "max_wait must not be negative"},
		{"-replica http://a:1 -retry-time -1s", nil, "retry_time must not be negative"},
		{"-replica http://a:1 -retry-budget NaN", nil, "retry_budget must be a share from 0 to 10, not NaN"},
		{"-replica http://a:1 -retry-budget -0.1", nil, "retry_budget must be"},
		{"-replica http://a:1 -header-timeout -1s", nil, "header_timeout must not be negative"},
		{"-replica http://a:1 -event-timeout -1s", nil, "event_timeout must not be negative"},
		{"-replica http://a:1 -upload-timeout -1s", nil, "upload_timeout must not be negative"},
		{"-replica http://a:1 -write-timeout -1s", nil, "write_timeout must not be negative"},
		{"-replica http://a:1 -max-in-flight -1", nil, "max_in_flight must not be negative"},
		{"-replica http://a:1 -max-buffered-bytes 5", nil, "max_buffered_bytes must be at least max_body_bytes"},
		{"", []string{"WARMPATH_RETRY_BUDGET=some"}, `WARMPATH_RETRY_BUDGET: "some" is not a number, like 0.2`},
		{"-demo 3 -replica http://a:1", nil, "demo and replica exclude each other"},
		{"-replica http://a:1 -tls-cert a.crt", nil, "client.tls_cert and client.tls_key go together"},
		{"-replica http://a:1 -max-connections 0", nil, "client.max_connections must be at least 1"},
		{"-replica http://a:1 -max-header-bytes 9", nil, "client.max_header_bytes must be at least 1 KiB"},
		{"-replica http://a:1 -client-header-timeout 0s", nil, "client.header_timeout must be above 0"},
		{"-replica http://a:1 -max-streams 0", nil, "client.max_streams must be at least 1"},
		{"-replica http://a:1 -max-url-bytes 0", nil, "max_url_bytes must be at least 256"},
		{"-replica http://a:1 -salt-secret short", nil, "auth.salt_secret must have at least 16 characters"},
		{"-replica http://a:1 -replica-auth clients", nil, "replica_auth must be auto, client, key or none"},
		{"-replica http://a:1 -replica-auth key", nil, "set it (-replica-key)"},
		{"-replica https://a:1 -replica-tls-key a.key", nil, "replica.tls_cert and replica.tls_key go together"},
		{"-replica https://a:1 -replica-tls-insecure -replica-tls-ca a.crt", nil, "better tls_insecure"},
		{"-demo 65", nil, "demo must be between 0 and 64"},
		{"-demo -1", nil, "demo must be between 0 and 64"},
		{"", []string{"WARMPATH_ATTEMPTS=few"}, `WARMPATH_ATTEMPTS: "few" is not a whole number`},
		{"", []string{"WARMPATH_DRAIN_TIMEOUT=5", "WARMPATH_POLICY_HEADER=maybe"}, `WARMPATH_DRAIN_TIMEOUT: "5" is not a duration, like 500ms or 1m30s` + "\n" + `WARMPATH_POLICY_HEADER: "maybe" is not true or false`},
	} {
		_, err := load(strings.Fields(c.args), c.vars...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %v: got error %v, want %q", c.args, c.vars, err, c.want)
		}
	}
	for _, args := range []string{"-hash-key team", "-replica http://a:1 -replica-auth key -replica-key k", "-demo 3", "-demo 64 -check", "-replica http://a:1 -listen :0 -admin [::1]:0"} {
		if _, err := load(strings.Fields(args)); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func flags() (all []*flag.Flag) {
	Default().Flags(new(string)).VisitAll(func(f *flag.Flag) { all = append(all, f) })
	return all
}

// helpText returns what the command prints for these arguments.
func helpText(t *testing.T, args ...string) string {
	var out bytes.Buffer
	_, err := Load(args, func(string) (string, bool) { return "", false }, &out)
	if !errors.Is(err, flag.ErrHelp) {
		t.Errorf("%q: got error %v", args, err)
	}
	return out.String()
}

func TestHelpFitsOneScreenAndNamesEveryFlag(t *testing.T) {
	first := helpText(t, "-h")
	lines := strings.Split(strings.TrimSpace(first), "\n")
	if len(lines) > 50 {
		t.Errorf("-h has %d lines, which is more than a screen", len(lines))
	}
	for _, line := range lines {
		if utf8.RuneCountInString(line) > 130 {
			t.Errorf("a line of %d columns: %s", utf8.RuneCountInString(line), line)
		}
	}
	for _, f := range flags() {
		if !regexp.MustCompile(`(?m)[ \n]-` + f.Name + `( |$)`).MatchString(first) {
			t.Errorf("-%s is not on the first screen", f.Name)
		}
	}
	for _, text := range []string{"gateway -demo 3", "WARMPATH_PROBE_INTERVAL", "prefix, least-tokens", "-h all"} {
		if !strings.Contains(first, text) {
			t.Errorf("%q is not in the help", text)
		}
	}
}

func TestHelpExplainsEveryFlag(t *testing.T) {
	all := helpText(t, "-h", "all")
	for _, f := range flags() {
		_, usage := flag.UnquoteUsage(f)
		if !strings.Contains(all, "\n  -"+f.Name) && !strings.HasPrefix(all, "  -"+f.Name) || usage == "" || !strings.Contains(all, usage) {
			t.Errorf("-%s is not explained", f.Name)
		}
	}
	some := helpText(t, "-h", "redis")
	if !strings.Contains(some, "-redis-namespace") || strings.Contains(some, "-policy ") {
		t.Errorf("-h redis explains\n%s", some)
	}
	var out bytes.Buffer
	if _, err := Load([]string{"-h", "rdis"}, func(string) (string, bool) { return "", false }, &out); !strings.Contains(fmt.Sprint(err), "-h all") {
		t.Errorf("an unknown word: %v", err)
	}
}

// TestEveryVariableCounts gives each flag's variable a value that is not the default.
func TestEveryVariableCounts(t *testing.T) {
	values := map[string]string{"listen": ":1", "admin": ":1", "log-level": "debug", "log-format": "json", "policy": "random", "shadow": "random", "usage": "ask", "replica-auth": "none", "redis-channels": "load", "redis": "redis://127.0.0.1:1", "warm-up": "false", "replica": "http://127.0.0.1:1", "demo": "2"}
	for _, f := range flags() {
		if f.Name == "config" {
			continue
		}
		value, ok := values[f.Name]
		if !ok {
			value = "7"
			if d, isDuration := f.Value.(flag.Getter); isDuration {
				switch d.Get().(type) {
				case time.Duration:
					value = "7s"
				case bool:
					value = "true"
				}
			}
		}
		c := Default()
		env := func(name string) (string, bool) {
			if name == Env(f.Name) {
				return value, true
			}
			return "", false
		}
		if err := readEnv(env, c.Flags(new(string))); err != nil {
			t.Errorf("%s=%s: %v", Env(f.Name), value, err)
			continue
		}
		if got := c.Flags(new(string)).Lookup(f.Name).DefValue; got == f.DefValue {
			t.Errorf("%s=%s is lost: %q", Env(f.Name), value, got)
		}
	}
}

// tags returns the keys of a struct's yaml tags.
func tags(of reflect.Type, prefix string) (keys []string) {
	for f := range of.Fields() {
		switch tag := f.Tag.Get("yaml"); {
		case tag == "-":
		case f.Type.Kind() == reflect.Struct:
			keys = append(keys, tags(f.Type, prefix+tag+".")...)
		default:
			keys = append(keys, prefix+tag)
		}
	}
	return keys
}

func TestFlagsKeysAndFieldsAreTheSame(t *testing.T) {
	var byFlag []string
	for name, key := range keys {
		byFlag = append(byFlag, key)
		if !slices.ContainsFunc(flags(), func(f *flag.Flag) bool { return f.Name == name }) {
			t.Errorf("there is no flag -%s for the key %s", name, key)
		}
	}
	fields := tags(reflect.TypeFor[Config](), "")
	slices.Sort(byFlag)
	slices.Sort(fields)
	if !slices.Equal(byFlag, fields) {
		t.Errorf("keys of flags\n%q\nof fields\n%q", byFlag, fields)
	}
}

// between returns the part of docs/configuration.md between two marks.
func between(t *testing.T, mark string) string {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok1 := strings.Cut(string(page), "<!-- "+mark+" -->\n")
	part, _, ok2 := strings.Cut(rest, "<!-- /"+mark+" -->")
	if !ok1 || !ok2 {
		t.Fatalf("no %s in docs/configuration.md", mark)
	}
	return part
}

func TestDocsListEverySetting(t *testing.T) {
	code := func(s string) string {
		if s == "" {
			return ""
		}
		return "`" + s + "`"
	}
	want := map[string][]string{}
	for _, f := range flags() {
		want[code("-"+f.Name)] = []string{code("-" + f.Name), code(Env(f.Name)), code(Key(f.Name)), code(f.DefValue)}
	}
	lines := strings.Split(strings.TrimSpace(between(t, "settings")), "\n")
	for _, line := range lines[2:] {
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		if len(cells) != 5 || cells[4] == "" {
			t.Errorf("not five cells: %s", line)
			continue
		}
		row := want[cells[0]]
		delete(want, cells[0])
		if !slices.Equal(cells[:4], row) {
			t.Errorf("docs/configuration.md has\n%q, the code\n%q", cells[:4], row)
		}
	}
	for name, row := range want {
		t.Errorf("docs/configuration.md lacks %s: | %s | … |", name, strings.Join(row, " | "))
	}
}

// The example file holds every key, with its default but for the replicas.
func TestDocsExampleIsComplete(t *testing.T) {
	example := strings.TrimSuffix(strings.TrimPrefix(between(t, "example"), "```yaml\n"), "```\n")
	got, err := load([]string{"-config", write(t, example)})
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Replica.URLs, want.File = got.Replica.URLs, got.File
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for _, key := range keys {
		name := key[strings.LastIndex(key, ".")+1:]
		if !regexp.MustCompile(`(?m)^ *` + name + `:`).MatchString(example) {
			t.Errorf("the example lacks %s", key)
		}
	}
}

// TestOtherHostsCannotReachTheAdminAddressUnlessToldSo holds the default.
func TestOtherHostsCannotReachTheAdminAddressUnlessToldSo(t *testing.T) {
	c, err := load([]string{"-demo", "1"})
	if err != nil {
		t.Fatal(err)
	}
	host, _, err := net.SplitHostPort(c.Admin)
	if err != nil || !net.ParseIP(host).IsLoopback() {
		t.Errorf("the admin address is %s", c.Admin)
	}
}

// TestErrorsDoNotShowWhatIsNextToThem: a file of settings has secrets in it, and
// errors go to the log.
func TestErrorsDoNotShowWhatIsNextToThem(t *testing.T) {
	for _, text := range []string{
		"admin_token: TOPSECRET\n\tx: y\n", "replica: {key: TOPSECRET\n", "replica:\n  key: \"TOPSECRET\nproxy: 1\n", "replica:\n  key: TOPSECRET\n attempts: 3\n",
		"admin_token: TOPSECRET\nadmin_token: TOPSECRET\n", "admin_token: TOPSECRET: x\n", "replica:\n  key: [TOPSECRET]\n", "replica:\n  urls: [ftp://user:TOPSECRET@a]\n", "replica:\n  urls: ['http://user:TOPSECRET@a']\n",
	} {
		_, err := load([]string{"-config", write(t, text)})
		if err == nil || strings.Contains(err.Error(), "TOPSECRET") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestWhatARunningGatewayTakesOver(t *testing.T) {
	old := Default()
	next := Default()
	next.Demo, next.Check = 3, true // no settings of a file
	if taken, restart := Changed(old, next); taken != nil || restart != nil {
		t.Errorf("equal: %q %q", taken, restart)
	}
	next.LogLevel, next.Listen, next.Auth.KeysFile, next.Replica.URLs, next.Router.DecodeTokens = slog.LevelDebug, ":1", "k", []string{"http://a"}, 7
	taken, restart := Changed(old, next)
	if want := []string{"auth.keys_file", "log_level"}; !slices.Equal(taken, want) {
		t.Errorf("taken over %q, want %q", taken, want)
	}
	if want := []string{"listen", "replica.urls", "router.decode_tokens"}; !slices.Equal(restart, want) {
		t.Errorf("after a restart %q, want %q", restart, want)
	}
	if next.Demo != 3 || !next.Check {
		t.Error("comparing has changed the settings")
	}
	var documented []string
	for _, m := range regexp.MustCompile("`([a-z_.]+)`").FindAllStringSubmatch(between(t, "reloadable"), -1) {
		documented = append(documented, m[1])
	}
	if !slices.Equal(documented, reloadable) {
		t.Errorf("docs/configuration.md has %q, the code %q", documented, reloadable)
	}
	for _, key := range reloadable {
		if !slices.Contains(tags(reflect.TypeFor[Config](), ""), key) {
			t.Errorf("there is no setting %s", key)
		}
	}
}

func FuzzReadFile(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "w.yaml")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := load([]string{"-config", path}); err != nil && len(err.Error()) < 10 {
			t.Errorf("%q: %v", text, err)
		}
	})
}
