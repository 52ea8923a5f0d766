package share

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Times that a command may take. No request waits for one.
const (
	commandTime = 500 * time.Millisecond
	blockTime   = 500 * time.Millisecond // that a reading waits for news
	bulkTime    = time.Second            // that a page of history may take
)

// options reads a Redis URL:
//
//	redis://user:password@host:6379/0                        one server; rediss:// for TLS
//	redis://host1:6379,host2:6379                            a Cluster, of which these are some nodes
//	redis://host:6379?cluster=true                           the same
//	redis://host1:26379,host2:26379/0?master_name=mymaster   Sentinels, with sentinel_username and sentinel_password
func (c *Config) options() (*redis.UniversalOptions, error) {
	scheme, rest, ok := strings.Cut(c.URL, "://")
	if !ok || scheme != "redis" && scheme != "rediss" {
		return nil, errors.New("the URL must begin with redis:// or rediss://")
	}
	// What net/url takes has one host.
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	login, hosts := "", authority
	if i := strings.LastIndex(authority, "@"); i >= 0 {
		login, hosts = authority[:i+1], authority[i+1:]
	}
	u, err := url.Parse(scheme + "://" + login + "host" + tail)
	if err != nil { // its text would have the password in it
		return nil, errors.New("the URL must be like redis://user:password@host:6379/0, with special characters of the password as %XX")
	}
	o := &redis.UniversalOptions{
		Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		DialTimeout: commandTime, ReadTimeout: commandTime, WriteTimeout: commandTime, PoolTimeout: commandTime, PoolSize: 4, PipelinePoolSize: -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	o.Username = u.User.Username()
	o.Password, _ = u.User.Password()
	if c.Password != "" {
		o.Password = c.Password
	}
	for host := range strings.SplitSeq(hosts, ",") {
		addr, err := hostPort(host)
		if err != nil {
			return nil, err
		}
		o.Addrs = append(o.Addrs, addr)
	}
	if db := strings.Trim(u.Path, "/"); db != "" {
		if o.DB, err = strconv.Atoi(db); err != nil || o.DB < 0 {
			return nil, fmt.Errorf("%q is not the number of a database", db)
		}
	}
	for name, values := range u.Query() {
		value := values[len(values)-1]
		switch name {
		case "master_name":
			o.MasterName = value
		case "sentinel_username":
			o.SentinelUsername = value
		case "sentinel_password":
			o.SentinelPassword = value
		case "cluster":
			if o.IsClusterMode, err = strconv.ParseBool(value); err != nil {
				return nil, fmt.Errorf("cluster=%s: write true or false", value)
			}
		default:
			return nil, fmt.Errorf("unknown parameter %q: there are cluster, master_name, sentinel_username and sentinel_password", name)
		}
	}
	if o.DB > 0 && o.MasterName == "" && (o.IsClusterMode || len(o.Addrs) > 1) {
		return nil, errors.New("a Cluster has no database but 0 (for Sentinels, add ?master_name=…)")
	}
	if scheme == "rediss" {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return o, c.trust(o.TLSConfig)
}

func hostPort(text string) (string, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil { // there is no port
		host, port = strings.Trim(text, "[]"), "6379"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 || host == "" {
		return "", fmt.Errorf("%q is not host:port", text)
	}
	return net.JoinHostPort(host, port), nil
}

// trust has the connection trust the authorities in CAFile beside those of the system.
func (c *Config) trust(t *tls.Config) error {
	if c.CAFile == "" {
		return nil
	}
	if t == nil {
		return errors.New("ca_file is of no use without TLS: write rediss://")
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return fmt.Errorf("ca_file: %w", err)
	}
	if t.RootCAs, err = x509.SystemCertPool(); err != nil {
		t.RootCAs = x509.NewCertPool()
	}
	if !t.RootCAs.AppendCertsFromPEM(pem) {
		return fmt.Errorf("ca_file %s has no certificate in it", c.CAFile)
	}
	return nil
}

// quiet takes what the library logs on its own: this package says it once.
type quiet struct{}

// Printf does nothing.
func (quiet) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(quiet{}) } // the library has one logger in all

// advice says what an operator can do about an error.
func advice(err error) string {
	text := err.Error()
	for _, a := range [...]struct{ word, advice string }{
		{"OOM ", "Redis is full: raise its maxmemory"},
		{"READONLY", "this is a replica: name the master, or its Sentinels"},
		{"WRONGPASS", "check the user and password of -redis"},
		{"NOAUTH", "give a password: -redis-password"},
		{"NOPERM", "the user needs XADD, XREAD, XREVRANGE, XINFO, EXPIRE, SET and DEL on wp:*"},
		{"unknown command", "Redis 6.2 or newer is needed"},
		{"x509", "trust its authority: -redis-ca"},
		{"context deadline exceeded", "it did not answer in time"},
	} {
		if strings.Contains(text, a.word) {
			return a.advice
		}
	}
	return "is it running, and can this host reach it?"
}
