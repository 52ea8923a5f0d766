// Package config makes the gateway's settings from a file, the environment and
// flags. Flags override the environment, which overrides the file, which
// overrides the defaults; what nothing sets is right for most fleets.
package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/auth"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/share"
)

// Config is every setting of the gateway. It is read-only once loaded.
type Config struct {
	// Listen is the address that clients use.
	Listen string `yaml:"listen"`
	// Admin is the address of metrics, health and the state of replicas. Clients must
	// not reach it.
	Admin string `yaml:"admin"`
	// AdminToken lets requests that do not come from this host see the admin page,
	// decisions and profiles, and drain replicas; without it they cannot.
	AdminToken string `yaml:"admin_token"`
	// LogLevel is debug, info, warn or error. Info has one line for each request.
	LogLevel slog.Level `yaml:"log_level"`
	// LogFormat is text or json.
	LogFormat string `yaml:"log_format"`
	// DrainDelay is how long the gateway still serves new requests after it was told to
	// stop, while /readyz says that it is not ready: whoever sends it traffic has to
	// notice first.
	DrainDelay time.Duration `yaml:"drain_delay"`
	// DrainTimeout is how long answers under way may take to end when the gateway is
	// told to stop, after the delay.
	DrainTimeout time.Duration `yaml:"drain_timeout"`

	Client  Client         `yaml:"client"`
	Auth    auth.Config    `yaml:"auth"`
	Replica replica.Config `yaml:"replica"`
	Router  router.Config  `yaml:"router"`
	Proxy   proxy.Config   `yaml:"proxy"`
	Redis   share.Config   `yaml:"redis"`

	// Demo starts that many mock replicas in this process instead of using any.
	Demo int `yaml:"-"`
	// Check says that the settings were only to be checked.
	Check bool `yaml:"-"`
	// Version says that only the version was asked for.
	Version bool `yaml:"-"`
	// HashKey is the name of the API key of which an entry was asked for, and
	// nothing else.
	HashKey string `yaml:"-"`
	// File is the file that was read, "" if there was none.
	File string `yaml:"-"`
}

// Client is the settings of connections from clients.
type Client struct {
	// TLSCert and TLSKey are PEM files; with them clients use HTTPS, and may use HTTP/2.
	TLSCert string `yaml:"tls_cert"`
	TLSKey  string `yaml:"tls_key"`
	// MaxConnections bounds connections, idle ones included. More wait to be accepted.
	MaxConnections int `yaml:"max_connections"`
	// MaxHeaderBytes bounds a request's line and headers.
	MaxHeaderBytes int `yaml:"max_header_bytes"`
	// HeaderTimeout bounds the time that they, and a TLS handshake, take to come.
	HeaderTimeout time.Duration `yaml:"header_timeout"`
	// MaxStreams bounds the requests at once on a connection with HTTP/2.
	MaxStreams int `yaml:"max_streams"`
}

// Validate reports the first setting that cannot work.
func (c *Client) Validate() error {
	switch {
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return errors.New("client.tls_cert and client.tls_key go together: set both, or neither")
	case c.MaxConnections < 1:
		return fmt.Errorf("client.max_connections must be at least 1, not %d", c.MaxConnections)
	case c.MaxHeaderBytes < 1<<10:
		return fmt.Errorf("client.max_header_bytes must be at least 1 KiB, not %d bytes", c.MaxHeaderBytes)
	case c.HeaderTimeout <= 0:
		return fmt.Errorf("client.header_timeout must be above 0, not %v", c.HeaderTimeout)
	case c.MaxStreams < 1:
		return fmt.Errorf("client.max_streams must be at least 1, not %d", c.MaxStreams)
	}
	return nil
}

// Default returns the defaults.
func Default() *Config {
	return &Config{
		Listen: ":8080", Admin: "127.0.0.1:9090", LogFormat: "text", DrainDelay: 5 * time.Second, DrainTimeout: time.Minute,
		Client:  Client{MaxConnections: 10000, MaxHeaderBytes: 64 << 10, HeaderTimeout: 10 * time.Second, MaxStreams: 250},
		Replica: replica.DefaultConfig(), Router: router.DefaultConfig(), Proxy: proxy.DefaultConfig(), Redis: share.DefaultConfig(),
	}
}

// Logger returns a logger to w in the format that the settings name.
func (c *Config) Logger(w io.Writer, level slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// EnvPrefix begins the names of environment variables: -probe-interval is
// WARMPATH_PROBE_INTERVAL.
const EnvPrefix = "WARMPATH_"

// Env returns the environment variable of a flag.
func Env(name string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// keys are the file's keys of the flags that have one. They are the same as the
// structs' yaml tags, which a test compares.
var keys = map[string]string{
	"listen": "listen", "admin": "admin", "admin-token": "admin_token", "log-level": "log_level", "log-format": "log_format", "drain-delay": "drain_delay", "drain-timeout": "drain_timeout",
	"tls-cert": "client.tls_cert", "tls-key": "client.tls_key", "max-connections": "client.max_connections", "max-header-bytes": "client.max_header_bytes", "client-header-timeout": "client.header_timeout", "max-streams": "client.max_streams",
	"keys-file": "auth.keys_file", "salt-secret": "auth.salt_secret",
	"replica-tls-ca": "replica.tls_ca", "replica-tls-cert": "replica.tls_cert", "replica-tls-key": "replica.tls_key", "replica-tls-server-name": "replica.tls_server_name", "replica-tls-insecure": "replica.tls_insecure",
	"replica-auth": "proxy.replica_auth", "max-url-bytes": "proxy.max_url_bytes",
	"replica": "replica.urls", "replica-key": "replica.key", "probe-interval": "replica.probe_interval", "probe-timeout": "replica.probe_timeout", "scrape-interval": "replica.scrape_interval", "warm-up": "replica.warm_up",
	"policy": "router.policy", "shadow": "router.shadow", "index-bytes": "router.index_bytes", "session-slack": "router.session_slack", "decode-tokens": "router.decode_tokens", "max-wait": "router.max_wait",
	"max-body-bytes": "proxy.max_body_bytes", "max-buffered-bytes": "proxy.max_buffered_bytes", "max-in-flight": "proxy.max_in_flight",
	"attempts": "proxy.attempts", "retry-time": "proxy.retry_time", "retry-budget": "proxy.retry_budget",
	"connect-timeout": "proxy.connect_timeout", "header-timeout": "proxy.header_timeout", "event-timeout": "proxy.event_timeout",
	"upload-timeout": "proxy.upload_timeout", "write-timeout": "proxy.write_timeout",
	"usage": "proxy.usage", "metric-models": "proxy.metric_models", "policy-header": "proxy.policy_header", "decision-headers": "proxy.decision_headers",
	"redis": "redis.url", "redis-password": "redis.password", "redis-ca": "redis.ca_file", "redis-namespace": "redis.namespace", "redis-channels": "redis.channels", "warm-start": "redis.warm_start",
}

// Key returns the file's key of a flag, "" if it has none.
func Key(name string) string { return keys[name] }

// Flags returns the flags, bound to c. File gets the value of -config.
func (c *Config) Flags(file *string) *flag.FlagSet {
	fs := flag.NewFlagSet("gateway", flag.ContinueOnError)
	fs.StringVar(&c.Listen, "listen", c.Listen, "`address` for clients")
	fs.StringVar(&c.Admin, "admin", c.Admin, "`address` for metrics, health and /replicas; clients must not reach it")
	fs.StringVar(&c.AdminToken, "admin-token", c.AdminToken, "bearer `token` that opens the admin page, /decisions, /explain, /debug/pprof and the draining of replicas on the admin address to other hosts")
	fs.TextVar(&c.LogLevel, "log-level", c.LogLevel, "least `level` that is logged: debug, info (a line for each request), warn or error")
	fs.StringVar(&c.LogFormat, "log-format", c.LogFormat, "`format` of log lines: text or json")
	fs.DurationVar(&c.DrainDelay, "drain-delay", c.DrainDelay, "how long new requests are still served after a stop signal, while /readyz fails")
	fs.DurationVar(&c.DrainTimeout, "drain-timeout", c.DrainTimeout, "how long answers under way may take to end after that")
	fs.StringVar(&c.Client.TLSCert, "tls-cert", c.Client.TLSCert, "PEM `file` with the certificate for clients: they then use HTTPS")
	fs.StringVar(&c.Client.TLSKey, "tls-key", c.Client.TLSKey, "PEM `file` with the key of -tls-cert")
	fs.IntVar(&c.Client.MaxConnections, "max-connections", c.Client.MaxConnections, "connections from clients at once; more wait to be accepted")
	fs.IntVar(&c.Client.MaxHeaderBytes, "max-header-bytes", c.Client.MaxHeaderBytes, "longest request line and headers, in `bytes`")
	fs.DurationVar(&c.Client.HeaderTimeout, "client-header-timeout", c.Client.HeaderTimeout, "time that a request's headers may take to come")
	fs.IntVar(&c.Client.MaxStreams, "max-streams", c.Client.MaxStreams, "requests at once on a connection with HTTP/2")
	fs.StringVar(&c.Auth.KeysFile, "keys-file", c.Auth.KeysFile, "YAML `file` with the API keys that let clients in; without it everyone is")
	fs.StringVar(&c.Auth.SaltSecret, "salt-secret", c.Auth.SaltSecret, "`secret` from which cache salts of API keys are made, the same on all gateways; better set in the environment")
	fs.Var(&list{values: &c.Replica.URLs}, "replica", "base `URL` of a vLLM replica, or of a source: file:, dns:, dns+srv: or kubernetes:; once for each")
	fs.StringVar(&c.Replica.Key, "replica-key", c.Replica.Key, "API `key` of the replicas, for probes and, as -replica-auth says, requests")
	fs.StringVar(&c.Replica.TLSCA, "replica-tls-ca", c.Replica.TLSCA, "PEM `file` with the authorities of https replicas, instead of the system's")
	fs.StringVar(&c.Replica.TLSCert, "replica-tls-cert", c.Replica.TLSCert, "PEM `file` with the gateway's certificate towards replicas")
	fs.StringVar(&c.Replica.TLSKey, "replica-tls-key", c.Replica.TLSKey, "PEM `file` with the key of -replica-tls-cert")
	fs.StringVar(&c.Replica.TLSServerName, "replica-tls-server-name", c.Replica.TLSServerName, "`name` that replicas' certificates must have, instead of the address's")
	fs.BoolVar(&c.Replica.TLSInsecure, "replica-tls-insecure", c.Replica.TLSInsecure, "do not check replicas' certificates (for trying out only)")
	fs.DurationVar(&c.Replica.ProbeInterval, "probe-interval", c.Replica.ProbeInterval, "time between two probes of a replica")
	fs.DurationVar(&c.Replica.ProbeTimeout, "probe-timeout", c.Replica.ProbeTimeout, "time that a probe may take")
	fs.DurationVar(&c.Replica.ScrapeInterval, "scrape-interval", c.Replica.ScrapeInterval, "time between two readings of a replica's /metrics")
	fs.BoolVar(&c.Replica.WarmUp, "warm-up", c.Replica.WarmUp, "have a new or returned replica answer one tiny request before it gets others")
	fs.StringVar(&c.Router.Policy, "policy", c.Router.Policy, "routing `policy`: "+strings.Join(router.Policies(), ", "))
	fs.StringVar(&c.Router.Shadow, "shadow", c.Router.Shadow, "`policy` of which is recorded what it would have done instead, and saved")
	fs.Int64Var(&c.Router.IndexBytes, "index-bytes", c.Router.IndexBytes, "memory for the index of prefixes, in `bytes`")
	fs.DurationVar(&c.Router.SessionSlack, "session-slack", c.Router.SessionSlack, "how much longer a session waits for its own replica than elsewhere before it moves")
	fs.IntVar(&c.Router.DecodeTokens, "decode-tokens", c.Router.DecodeTokens, "`tokens` of others' answers that time to first token is weighed against; more spreads more evenly, fewer keep to caches")
	fs.DurationVar(&c.Router.MaxWait, "max-wait", c.Router.MaxWait, "longest predicted wait of a request, on the least busy replica, with which it is still taken; 0 takes all")
	fs.Int64Var(&c.Proxy.MaxBodyBytes, "max-body-bytes", c.Proxy.MaxBodyBytes, "largest request body, in `bytes`")
	fs.Int64Var(&c.Proxy.MaxBufferedBytes, "max-buffered-bytes", c.Proxy.MaxBufferedBytes, "memory for the bodies of all requests under way, in `bytes`; 0 is no limit")
	fs.IntVar(&c.Proxy.MaxInFlight, "max-in-flight", c.Proxy.MaxInFlight, "most `requests` under way at a time; 0 is no limit")
	fs.IntVar(&c.Proxy.Attempts, "attempts", c.Proxy.Attempts, "on how many replicas a request is tried at most")
	fs.DurationVar(&c.Proxy.RetryTime, "retry-time", c.Proxy.RetryTime, "how long after its arrival a request may still be tried on another replica")
	fs.Float64Var(&c.Proxy.RetryBudget, "retry-budget", c.Proxy.RetryBudget, "most attempts beyond the first of all requests together, as a `share` of the requests; 0 is no limit")
	fs.DurationVar(&c.Proxy.ConnectTimeout, "connect-timeout", c.Proxy.ConnectTimeout, "time that a connection to a replica may take")
	fs.DurationVar(&c.Proxy.HeaderTimeout, "header-timeout", c.Proxy.HeaderTimeout, "time until a replica's answer begins, which is its whole time if it is not streamed; 0 is for ever")
	fs.DurationVar(&c.Proxy.EventTimeout, "event-timeout", c.Proxy.EventTimeout, "time that a replica may be silent within an answer, the prefill included; 0 is for ever")
	fs.DurationVar(&c.Proxy.UploadTimeout, "upload-timeout", c.Proxy.UploadTimeout, "time that a client may be silent while it sends a request; 0 is for ever")
	fs.DurationVar(&c.Proxy.WriteTimeout, "write-timeout", c.Proxy.WriteTimeout, "time that a client may not take what is sent to it; 0 is for ever")
	fs.StringVar(&c.Proxy.Usage, "usage", c.Proxy.Usage, "how engines' token counts are come by: watch reads them `where` clients ask for them, ask also asks where a streaming client said nothing")
	fs.IntVar(&c.Proxy.MetricModels, "metric-models", c.Proxy.MetricModels, "how many `models` have metrics of their own; the others share the name other")
	fs.IntVar(&c.Proxy.MaxURLBytes, "max-url-bytes", c.Proxy.MaxURLBytes, "longest path and query of a request, in `bytes`")
	fs.StringVar(&c.Proxy.ReplicaAuth, "replica-auth", c.Proxy.ReplicaAuth, "`mode` by which requests to replicas prove themselves: client (the client's own key), key (-replica-key), none, or auto: client without -keys-file, key with it")
	fs.BoolVar(&c.Proxy.PolicyHeader, "policy-header", c.Proxy.PolicyHeader, "let requests choose a policy by the header "+proxy.HeaderPolicy+" (for load tests)")
	fs.BoolVar(&c.Proxy.DecisionHeaders, "decision-headers", c.Proxy.DecisionHeaders, "say on responses why their replica was chosen and what was predicted")
	fs.StringVar(&c.Redis.URL, "redis", c.Redis.URL, "`URL` of the Redis over which several gateways share what they know, as redis://host:port")
	fs.StringVar(&c.Redis.Password, "redis-password", c.Redis.Password, "`password` for Redis, if it is not in the URL")
	fs.StringVar(&c.Redis.CAFile, "redis-ca", c.Redis.CAFile, "`file` with certificates of authorities to trust for rediss://")
	fs.StringVar(&c.Redis.Namespace, "redis-namespace", c.Redis.Namespace, "`name` of the fleet, the same in all its gateways")
	fs.StringVar(&c.Redis.Channels, "redis-channels", c.Redis.Channels, "what is shared: `both`, load or prefix (for measurements)")
	fs.DurationVar(&c.Redis.WarmStart, "warm-start", c.Redis.WarmStart, "longest time to learn from the other gateways before /readyz says yes")
	fs.StringVar(file, "config", "", "YAML `file` with settings; see docs/configuration.md")
	fs.BoolVar(&c.Check, "check", c.Check, "check the settings and exit")
	fs.BoolVar(&c.Version, "version", c.Version, "say which version this is and exit")
	fs.StringVar(&c.HashKey, "hash-key", c.HashKey, "read an API key from standard input and print its entry for -keys-file under this `name`, and exit")
	fs.IntVar(&c.Demo, "demo", c.Demo, "try it: serve from `n` mock replicas inside this process")
	fs.Usage = func() { help(fs.Output(), fs) }
	return fs
}

// list is a flag that may be given several times, or once with values separated
// by spaces or commas. Its first use replaces what came from elsewhere.
type list struct {
	values *[]string
	used   bool
}

// String returns the values.
func (l *list) String() string {
	if l.values == nil {
		return ""
	}
	return strings.Join(*l.values, ",")
}

// Set adds values.
func (l *list) Set(text string) error {
	if !l.used {
		*l.values, l.used = nil, true
	}
	*l.values = append(*l.values, strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })...)
	return nil
}

// Validate reports the first setting that cannot work.
func (c *Config) Validate() error {
	if err := checkAddress("listen", c.Listen); err != nil {
		return err
	}
	if err := checkAddress("admin", c.Admin); err != nil {
		return err
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		return fmt.Errorf("log_format must be text or json, not %q", c.LogFormat)
	}
	if c.Demo < 0 || c.Demo > 64 {
		return fmt.Errorf("demo must be between 0 and 64, not %d", c.Demo)
	}
	if c.DrainDelay < 0 {
		return fmt.Errorf("drain_delay must not be negative, but is %v", c.DrainDelay)
	}
	if c.DrainTimeout < 0 {
		return fmt.Errorf("drain_timeout must not be negative, but is %v", c.DrainTimeout)
	}
	if c.Demo > 0 && len(c.Replica.URLs) > 0 {
		return errors.New("demo and replica exclude each other: -demo brings its own replicas")
	}
	checked := c.Replica
	if c.Demo > 0 {
		checked.URLs = []string{"http://demo:1"}
	}
	if c.Proxy.ReplicaAuth == proxy.AuthKey && c.Replica.Key == "" {
		return errors.New("proxy.replica_auth key sends replica.key, which is not set: set it (-replica-key), or replica_auth to none")
	}
	for _, check := range []func() error{c.Client.Validate, c.Auth.Validate, checked.Validate, c.Router.Validate, c.Proxy.Validate, c.Redis.Validate} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func checkAddress(name, address string) error {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("%s %q is not an address: write host:port, or :port for every address of this host", name, address)
	}
	return nil
}
