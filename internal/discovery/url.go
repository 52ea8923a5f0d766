package discovery

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// ID returns the name of the replica at a base URL, the same in every gateway and
// however the address is written: host:port, and the path if there is one.
func ID(u *url.URL) string {
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.String()
	}
	if port == "" {
		port = "80"
		if u.Scheme == "https" {
			port = "443"
		}
	}
	return net.JoinHostPort(host, port) + u.Path
}

// parseURL reads a replica's base URL.
func parseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("replica %q is not a URL like http://host:port, nor one of a source: file:, dns:, dns+srv: or kubernetes: and where", shown(raw))
	}
	if u.User != nil {
		return nil, fmt.Errorf("replica %s has a user in it, which requests would not bring along: set replica.key (-replica-key) and proxy.replica_auth", u.Redacted())
	}
	u = &url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimRight(u.Path, "/")}
	if strings.HasSuffix(u.Path, "/v1") {
		return nil, fmt.Errorf("replica %q is a base URL too long: leave out /v1, which requests bring along", u)
	}
	if u.Port() != "" && !isPort(u.Port()) {
		return nil, fmt.Errorf("replica %q: its port must be 1 to 65535", u)
	}
	return u, nil
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// longestShown is how much of what cannot be read an error shows.
const longestShown = 200

// shown returns what an error may show of a text: what is before an @ may be a password.
func shown(raw string) string {
	if i := strings.LastIndex(raw, "@"); i >= 0 {
		raw = "…" + raw[i:]
	}
	if len(raw) > longestShown {
		raw = raw[:longestShown] + "…"
	}
	return raw
}

// parseSource reads the URL of a source, which may have the named options as its
// query. Every source that makes URLs takes the option scheme.
func parseSource(raw, form string, options ...string) (u *url.URL, values url.Values, err error) {
	u, err = url.Parse(raw)
	if err != nil || u.User != nil || u.Fragment != "" {
		return nil, nil, fmt.Errorf("replica %q is not of the form %s", shown(raw), form)
	}
	values, err = url.ParseQuery(u.RawQuery)
	if strings.Contains(u.RawQuery, "@") || strings.Contains(values.Encode(), "%40") {
		return nil, nil, fmt.Errorf("replica %q has a user in its options, which take none", form)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("replica %q: %w", raw, err)
	}
	for name := range values {
		if !slices.Contains(options, name) {
			return nil, nil, fmt.Errorf("replica %q has an unknown option %q: it takes %s", raw, name, strings.Join(options, ", "))
		}
	}
	if scheme := values.Get("scheme"); scheme == "" {
		values.Set("scheme", "http")
	} else if scheme != "http" && scheme != "https" {
		return nil, nil, fmt.Errorf("replica %q: scheme must be http or https, not %q", raw, scheme)
	}
	return u, values, nil
}

// urlOf returns the base URL of a host, which may be an IPv6 address, and a port.
func urlOf(scheme, host, port string) *url.URL {
	return &url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port)}
}

// sorted returns URLs in the one order that all gateways see, none of them twice.
func sorted(urls []*url.URL) []*url.URL {
	slices.SortFunc(urls, func(a, b *url.URL) int { return strings.Compare(ID(a), ID(b)) })
	return slices.CompactFunc(urls, func(a, b *url.URL) bool { return ID(a) == ID(b) })
}
