package replica

import (
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/warmpath/warmpath/internal/certs"
)

// checkTLS reports the first setting of TLS that cannot work.
func (c *Config) checkTLS() error {
	switch {
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return errors.New("replica.tls_cert and replica.tls_key go together: set both, or neither")
	case c.TLSInsecure && (c.TLSCA != "" || c.TLSServerName != ""):
		return errors.New("replica.tls_insecure checks no certificate: leave out replica.tls_ca and replica.tls_server_name, or better tls_insecure")
	}
	return nil
}

// newTLS returns how connections to replicas at https addresses are secured. The
// gateway's own certificate is read by [Pool.ReadCertificate], before and again.
func (p *Pool) newTLS(cfg *Config) (*tls.Config, error) {
	t := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: cfg.TLSServerName,
		GetClientCertificate: p.certificate.ForServers,
	}
	if cfg.TLSCA != "" {
		var err error
		if t.RootCAs, err = certs.Authorities(cfg.TLSCA); err != nil {
			return nil, fmt.Errorf("replica.tls_ca: %w", err)
		}
	}
	if cfg.TLSInsecure {
		p.log.Warn("certificates of replicas are not checked: whoever is between the gateway and them can read prompts and answers; set replica.tls_ca instead of replica.tls_insecure")
		t.InsecureSkipVerify = true
	}
	return t, nil
}

// TLS returns how connections to replicas at https addresses are secured, for
// requests to be as safe as probes.
func (p *Pool) TLS() *tls.Config { return p.tls.Clone() }

// ReadCertificate reads the gateway's certificate towards replicas, if cfg names
// one. New connections have it once use is called.
func (p *Pool) ReadCertificate(cfg Config) (use func(), err error) {
	if cfg.TLSCert == "" {
		return func() {}, nil
	}
	if use, err = p.certificate.Read(cfg.TLSCert, cfg.TLSKey); err != nil {
		return nil, fmt.Errorf("replica.tls_cert: %w", err)
	}
	return use, nil
}

// SetKey changes the API key of probes.
func (p *Pool) SetKey(key string) { p.key.Store(&key) }
