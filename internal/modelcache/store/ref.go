package store

import (
	"context"
	"strings"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
)

// SetRef lets a model be found by another name.
func (s *Store) SetRef(ctx context.Context, name string, model manifest.Digest) error {
	if err := CheckName(name); err != nil {
		return err
	}
	return s.locked(ctx, func() error { return s.writeFile(refs+"/"+name, []byte(model+"\n")) })
}

// Ref returns the model of a name. White space around the digest, as hand-made files
// have it, does not matter. The model itself may be gone.
func (s *Store) Ref(name string) (manifest.Digest, error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	text, err := s.readSmall(refs+"/"+name, 4096)
	if err != nil {
		return "", err
	}
	return manifest.ParseDigest(strings.TrimSpace(string(text)))
}
