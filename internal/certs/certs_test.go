package certs_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/certs"
)

// pair writes a self-signed certificate of that name and its key.
func pair(t *testing.T, dir, name string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

func served(t *testing.T, p *certs.Pair) string {
	t.Helper()
	c, err := p.ForClients(nil)
	if err != nil {
		return err.Error()
	}
	return c.Leaf.Subject.CommonName
}

func TestACertificateIsReplacedOnlyByAGoodOne(t *testing.T) {
	dir := t.TempDir()
	var p certs.Pair
	if got := served(t, &p); got != "no certificate" {
		t.Errorf("before any: %s", got)
	}
	if c, err := p.ForServers(nil); err != nil || len(c.Certificate) != 0 {
		t.Errorf("towards servers before any: %v, %v", c, err)
	}
	oldCert, oldKey := pair(t, dir, "old")
	newCert, newKey := pair(t, dir, "new")
	use, err := p.Read(oldCert, oldKey)
	if err != nil {
		t.Fatal(err)
	}
	use()
	later, err := p.Read(newCert, newKey)
	if err != nil {
		t.Fatal(err)
	}
	if got := served(t, &p); got != "old" {
		t.Errorf("read but not used yet: %s", got)
	}
	if _, err := p.Read(newCert, oldKey); err == nil || !strings.Contains(err.Error(), newCert) || !strings.Contains(err.Error(), oldKey) {
		t.Errorf("a key that does not belong to the certificate: %v", err)
	}
	if _, err := p.Read(newCert, filepath.Join(dir, "none")); err == nil {
		t.Error("no key file")
	}
	later()
	if got := served(t, &p); got != "new" {
		t.Errorf("after use: %s", got)
	}
	if c, err := p.ForServers(nil); err != nil || c.Leaf.Subject.CommonName != "new" {
		t.Errorf("towards servers: %v", err)
	}
}

func TestAuthorities(t *testing.T) {
	cert, key := pair(t, t.TempDir(), "ca")
	if _, err := certs.Authorities(cert); err != nil {
		t.Error(err)
	}
	if _, err := certs.Authorities(key); err == nil || !strings.Contains(err.Error(), key+" holds no certificate") {
		t.Errorf("a file without certificates: %v", err)
	}
	if _, err := certs.Authorities("none"); err == nil {
		t.Error("no file")
	}
}
