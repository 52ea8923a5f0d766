package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Times of looking up a name.
const (
	longestRefresh  = 10 * time.Second // between two lookups, whatever the TTL; the option refresh sets another
	shortestRefresh = time.Second
	retryRefresh    = 2 * time.Second // after one that failed
	queryTimeout    = 2 * time.Second // of each try
)

// udpSize is how long an answer by UDP may be, so that no network splits it (the DNS
// flag day of 2020). What is longer comes by TCP.
const udpSize = 1232

// resolvConf is where a host keeps its DNS servers.
const resolvConf = "/etc/resolv.conf"

// names is a DNS name and who knows it: of each address one replica, as a headless
// Service has them.
type names struct {
	name    string
	port    string // "" for SRV records, which have it
	scheme  string
	server  string // "" for those of resolvConf
	refresh time.Duration
}

func newDNS(raw string) (Source, error) {
	form := "dns://name:port"
	if strings.HasPrefix(raw, "dns+srv:") {
		form = "dns+srv://_port._tcp.name"
	}
	u, options, err := parseSource(raw, form, "scheme", "server", "refresh")
	if err != nil {
		return nil, err
	}
	n := names{name: u.Hostname(), port: u.Port(), scheme: options.Get("scheme"), server: options.Get("server"), refresh: longestRefresh}
	if _, ok := dns.IsDomainName(n.name); !ok || n.name == "" || u.Path != "" || (n.port == "") != (u.Scheme == "dns+srv") {
		return nil, fmt.Errorf("replica %q is not of the form %s", raw, form)
	}
	if n.port != "" && !isPort(n.port) {
		return nil, fmt.Errorf("replica %q: its port must be 1 to 65535", raw)
	}
	if net.ParseIP(n.name) != nil {
		return nil, fmt.Errorf("replica %q is an address and no name: write %s", raw, urlOf(n.scheme, n.name, n.port))
	}
	if n.server != "" {
		if _, _, err := net.SplitHostPort(n.server); err != nil {
			return nil, fmt.Errorf("replica %q: server must be host:port, not %q", raw, n.server)
		}
	}
	if text := options.Get("refresh"); text != "" {
		if n.refresh, err = time.ParseDuration(text); err != nil || n.refresh < shortestRefresh {
			return nil, fmt.Errorf("replica %q: refresh must be a duration of at least %v, not %q", raw, shortestRefresh, text)
		}
	}
	return n, nil
}

// Run looks the name up again and again: when the answer's time to live is over, but
// at least as often as refresh says.
func (n names) Run(ctx context.Context, send func(Update)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		urls, ttl, err := n.lookup(ctx)
		if ctx.Err() != nil {
			return
		}
		send(Update{URLs: urls, Err: err})
		pause := max(shortestRefresh, min(ttl, n.refresh))
		if err != nil || len(urls) == 0 {
			pause = min(retryRefresh, n.refresh)
		}
		timer.Reset(pause)
	}
}

// lookup returns the replicas that the name stands for, and for how long that holds.
func (n names) lookup(ctx context.Context) (urls []*url.URL, ttl time.Duration, err error) {
	conf := &dns.ClientConfig{}
	if n.server != "" {
		host, port, _ := net.SplitHostPort(n.server)
		conf.Servers, conf.Port = []string{host}, port
	} else if conf, err = dns.ClientConfigFromFile(resolvConf); err != nil {
		return nil, 0, err
	}
	for _, name := range conf.NameList(n.name) { // with the search domains
		found := &answer{conf: conf}
		if n.port == "" {
			urls, err = n.services(ctx, found, name)
		} else {
			urls, err = n.hosts(ctx, found, name, n.port)
		}
		if err == nil && len(urls) > 0 {
			return sorted(urls), time.Duration(found.ttl) * time.Second, nil
		}
		if err != nil {
			break // who does not know is not asked for less
		}
	}
	return nil, 0, err
}

// services returns a replica of each SRV record's host and port.
func (n names) services(ctx context.Context, a *answer, name string) (urls []*url.URL, err error) {
	records, extra, err := a.query(ctx, name, dns.TypeSRV)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		srv, ok := r.(*dns.SRV)
		if !ok || srv.Target == "." || srv.Port == 0 { // which says that there is no such service
			continue
		}
		port := strconv.Itoa(int(srv.Port))
		addresses := a.addresses(extra, srv.Target)
		if len(addresses) == 0 {
			hosts, err := n.hosts(ctx, a, srv.Target, port)
			if err != nil {
				return nil, err
			}
			urls = append(urls, hosts...)
		}
		for _, ip := range addresses {
			urls = append(urls, urlOf(n.scheme, ip.String(), port))
		}
	}
	return urls, nil
}

// hosts returns a replica of each of a name's addresses: its IPv4 ones, or if it has
// none its IPv6 ones. A replica that has both is one.
func (n names) hosts(ctx context.Context, a *answer, name, port string) (urls []*url.URL, err error) {
	for _, kind := range [...]uint16{dns.TypeA, dns.TypeAAAA} {
		records, _, err := a.query(ctx, name, kind)
		if err != nil {
			return nil, err
		}
		for _, ip := range a.addresses(records, "") {
			urls = append(urls, urlOf(n.scheme, ip.String(), port))
		}
		if len(urls) > 0 {
			break
		}
	}
	return urls, nil
}

// answer is all that a lookup was told.
type answer struct {
	conf *dns.ClientConfig
	some bool
	ttl  uint32 // the least, in seconds
}

// addresses returns those of a name, "" for any, of one family.
func (a *answer) addresses(records []dns.RR, name string) (four []net.IP) {
	var six []net.IP
	for _, r := range records {
		if name != "" && !strings.EqualFold(r.Header().Name, name) {
			continue
		}
		switch r := r.(type) {
		case *dns.A:
			if somebodys(r.A) {
				four = append(four, r.A)
			}
		case *dns.AAAA:
			if somebodys(r.AAAA) {
				six = append(six, r.AAAA)
			}
		}
	}
	if len(four) == 0 {
		return six
	}
	return four
}

// somebodys reports whether a replica can have an address. Resolvers that block a name
// answer 0.0.0.0, which would be this host.
func somebodys(ip net.IP) bool { return len(ip) > 0 && !ip.IsUnspecified() && !ip.IsMulticast() }

// query asks the servers, one after another. That there is no such name is an empty
// answer, and no error.
func (a *answer) query(ctx context.Context, name string, kind uint16) (records, extra []dns.RR, err error) {
	q := new(dns.Msg).SetQuestion(dns.Fqdn(name), kind)
	q.SetEdns0(udpSize, false)
	for _, server := range a.conf.Servers {
		resp, e := exchange(ctx, q, net.JoinHostPort(server, a.conf.Port))
		if e != nil {
			err = errors.Join(err, fmt.Errorf("ask %s for %s %s: %w", server, dns.TypeToString[kind], name, e))
			continue
		}
		for _, r := range resp.Answer {
			if ttl := r.Header().Ttl; !a.some || ttl < a.ttl {
				a.some, a.ttl = true, ttl
			}
		}
		return resp.Answer, resp.Extra, nil
	}
	return nil, nil, err
}

// exchange asks one server, again by TCP if the answer does not fit.
func exchange(ctx context.Context, q *dns.Msg, server string) (resp *dns.Msg, err error) {
	for _, network := range [...]string{"udp", "tcp"} {
		if resp, err = exchangeBy(ctx, network, q, server); err != nil {
			return nil, err
		}
		if !resp.Truncated {
			break
		}
	}
	switch {
	case resp.Truncated:
		return nil, errors.New("the answer is cut off, by TCP too")
	case resp.Rcode != dns.RcodeSuccess && resp.Rcode != dns.RcodeNameError:
		return nil, errors.New(dns.RcodeToString[resp.Rcode])
	}
	return resp, nil
}

// exchangeBy asks by one kind of connection. The library waits for an answer however ctx
// ends, unless its connection is closed.
func exchangeBy(ctx context.Context, network string, q *dns.Msg, server string) (*dns.Msg, error) {
	c := dns.Client{Net: network, Timeout: queryTimeout, UDPSize: udpSize}
	conn, err := c.DialContext(ctx, server)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if stop() {
			_ = conn.Close()
		}
	}()
	resp, _, err := c.ExchangeWithConnContext(ctx, q, conn)
	return resp, err
}
