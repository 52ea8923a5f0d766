// Package auth knows who may come in: the API keys of clients, what each may
// have under way at once, and the salt that keeps its prompts apart in the
// replicas' caches.
//
// Keys are kept as SHA-256 digests and found by the digest of what a client
// sent. That needs no comparison in constant time: how long a look-up takes
// depends on the digest of a guess, whose bits nobody can choose, and a digest
// known in part brings nobody nearer to a key of 128 bits or more.
package auth

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
)

// Config is where the API keys of clients come from.
type Config struct {
	// KeysFile is a YAML file with the keys' digests; "" lets everyone in.
	KeysFile string `yaml:"keys_file"`
	// SaltSecret is what the salts of keys with cache_salt: auto are made from. It
	// must be the same on all gateways, and nobody else may know it.
	SaltSecret string `yaml:"salt_secret"`
}

// minSecret is the least length of a secret or key: 16 characters of base64 are
// 96 bits.
const minSecret = 16

// Validate reports the first setting that cannot work. It reads no file.
func (c *Config) Validate() error {
	if c.SaltSecret != "" && len(c.SaltSecret) < minSecret {
		return fmt.Errorf("auth.salt_secret must have at least %d characters: openssl rand -hex 32 makes one", minSecret)
	}
	return nil
}

// Keys is a set of API keys. It is read-only; what their holders have under way
// passes on to the set that replaces it.
type Keys struct {
	list     []*Key
	byDigest map[[sha256.Size]byte]*Key
	uses     map[string]*use // by name, of this set and of those before it
}

// List returns the keys in the order of their file.
func (k *Keys) List() []*Key { return k.list }

// Key is one API key. All methods may be called concurrently.
type Key struct {
	Name             string
	MaxRequests      int64  // in flight at once; 0 is no limit
	MaxPendingTokens int64  // of prompts that are not prefilled; 0 is no limit
	Salt             []byte // cache_salt for its requests as a JSON string, nil for none

	digest [sha256.Size]byte
	use    *use
}

// use is what the holder of a key has under way.
type use struct {
	index            int
	requests, tokens atomic.Int64
}

// Index is a small number of the key's name, above 0 and kept for the process's
// life; names beyond the first [MaxNames] share 0.
func (k *Key) Index() int { return k.use.index }

// Requests returns how many requests are in flight.
func (k *Key) Requests() int64 { return k.use.requests.Load() }

// PendingTokens returns how many prompt tokens are waiting for their prefill.
func (k *Key) PendingTokens() int64 { return k.use.tokens.Load() }

// Begin counts a request in flight, for [Key.End] to undo, or reports false when
// there are as many as there may be.
func (k *Key) Begin() bool {
	for {
		n := k.use.requests.Load()
		if k.MaxRequests > 0 && n >= k.MaxRequests {
			return false
		}
		if k.use.requests.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// End takes a request back that Begin counted.
func (k *Key) End() { k.use.requests.Add(-1) }

// Hold counts a prompt's tokens as pending, for [Key.Release] to undo, or reports
// false when that would be too many. A prompt that waits alone is never too long.
func (k *Key) Hold(tokens int64) bool {
	for {
		n := k.use.tokens.Load()
		if k.MaxPendingTokens > 0 && n > 0 && n+tokens > k.MaxPendingTokens {
			return false
		}
		if k.use.tokens.CompareAndSwap(n, n+tokens) {
			return true
		}
	}
}

// Release takes tokens back that Hold counted.
func (k *Key) Release(tokens int64) { k.use.tokens.Add(-tokens) }

// maxCredential is the longest API key that is looked up.
const maxCredential = 512

// Find returns the key that a request's headers carry, nil if they carry none
// that is known. Clients of OpenAI's API send Authorization: Bearer, those of
// Anthropic's x-api-key, those of Azure's api-key.
func (k *Keys) Find(h http.Header) *Key {
	if scheme, token, ok := strings.Cut(h.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		if key := k.find(strings.TrimSpace(token)); key != nil {
			return key
		}
	}
	if key := k.find(h.Get("X-Api-Key")); key != nil {
		return key
	}
	return k.find(h.Get("Api-Key"))
}

func (k *Keys) find(credential string) *Key {
	if credential == "" || len(credential) > maxCredential {
		return nil
	}
	var text [maxCredential]byte
	return k.byDigest[sha256.Sum256(text[:copy(text[:], credential)])]
}

// Credentials are the headers in which clients send keys, and cookies, which may
// be as good as one.
var Credentials = [...]string{"Authorization", "X-Api-Key", "Api-Key", "Cookie"}

// Entry returns what to write into a file of keys for an API key.
func Entry(name, key string) (string, error) {
	if !validName(name) {
		return "", errors.New("the name " + nameRule)
	}
	if len(key) < minSecret || len(key) > maxCredential {
		return "", fmt.Errorf("an API key must have %d to %d characters: openssl rand -hex 32 makes one", minSecret, maxCredential)
	}
	return fmt.Sprintf("  - name: %s\n    sha256: %x\n", name, sha256.Sum256([]byte(key))), nil
}
