package gateway

import (
	"errors"
	"fmt"

	"github.com/warmpath/warmpath/internal/auth"
	"github.com/warmpath/warmpath/internal/certs"
	"github.com/warmpath/warmpath/internal/config"
)

// Check reports whether the files that the settings name can be used.
func Check(cfg *config.Config) error {
	_, err := auth.Read(cfg.Auth, nil)
	pair := new(certs.Pair)
	for _, files := range [][3]string{
		{"client.tls_cert", cfg.Client.TLSCert, cfg.Client.TLSKey},
		{"replica.tls_cert", cfg.Replica.TLSCert, cfg.Replica.TLSKey},
	} {
		if files[1] != "" {
			if _, e := pair.Read(files[1], files[2]); e != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", files[0], e))
			}
		}
	}
	if cfg.Replica.TLSCA != "" {
		if _, e := certs.Authorities(cfg.Replica.TLSCA); e != nil {
			err = errors.Join(err, fmt.Errorf("replica.tls_ca: %w", e))
		}
	}
	return err
}

// prepare reads all that can change while the gateway runs. Nothing does before
// use is called, and use cannot fail.
func (g *Gateway) prepare(cfg *config.Config) (use func(), err error) {
	keys, err := auth.Read(cfg.Auth, g.proxy.Keys())
	if err != nil {
		return nil, err
	}
	if keys == nil && g.proxy.Keys() != nil {
		return nil, errors.New("auth.keys_file: it takes a restart to let everyone in")
	}
	useOurs, err := g.pool.ReadCertificate(cfg.Replica)
	if err != nil {
		return nil, err
	}
	useClients := func() {}
	if cfg.Client.TLSCert != "" {
		if useClients, err = g.certificate.Read(cfg.Client.TLSCert, cfg.Client.TLSKey); err != nil {
			return nil, fmt.Errorf("client.tls_cert: %w", err)
		}
	}
	return func() {
		useOurs()
		useClients()
		g.pool.SetKey(cfg.Replica.Key)
		g.proxy.SetAccess(keys, cfg.Replica.Key)
	}, nil
}
