// Package certs reads certificates from files, and reads them again when they
// have changed, without a restart.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
)

// Pair is a certificate with its key, as files hold them. The zero value has
// none yet. All methods may be called concurrently.
type Pair struct {
	current atomic.Pointer[tls.Certificate]
}

// Read reads the files. What they hold is used once use is called; until then,
// and if there is an error, what was there before is.
func (p *Pair) Read(certFile, keyFile string) (use func(), err error) {
	c, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", certFile, keyFile, err)
	}
	return func() { p.current.Store(&c) }, nil
}

// ForClients is [tls.Config.GetCertificate].
func (p *Pair) ForClients(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := p.current.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("no certificate")
}

// ForServers is [tls.Config.GetClientCertificate].
func (p *Pair) ForServers(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if c := p.current.Load(); c != nil {
		return c, nil
	}
	return new(tls.Certificate), nil // none is sent
}

// Authorities reads the certificates of authorities from a PEM file.
func Authorities(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate in PEM form", file)
	}
	return pool, nil
}
