package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// MaxNames is how many names of keys are told apart in metrics over the life of a
// process, however often the file changes.
const MaxNames = 256

// OtherName stands for the names beyond [MaxNames].
const OtherName = "other"

const nameRule = "must have 1 to 64 characters out of letters, digits and . _ -, and not be " + OtherName

func validName(name string) bool {
	if name == "" || len(name) > 64 || name == OtherName {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == "" &&
		!strings.ContainsFunc(name, func(r rune) bool { return r > 'z' })
}

// Read reads the keys that cfg names, nil if it names no file. What holders have
// under way in before, which may be nil, goes on in the new set. Errors name the
// file, the line and the key, but never show what stands there: it may be secret.
func Read(cfg Config, before *Keys) (*Keys, error) {
	if cfg.KeysFile == "" {
		return nil, nil
	}
	text, err := os.ReadFile(cfg.KeysFile)
	if err != nil {
		return nil, fmt.Errorf("auth.keys_file: %w", err)
	}
	list, err := parse(text)
	if err == nil {
		err = salt(list, cfg.SaltSecret)
	}
	if err != nil {
		return nil, fmt.Errorf("auth.keys_file %s%w", cfg.KeysFile, err)
	}
	k := &Keys{byDigest: map[[sha256.Size]byte]*Key{}, uses: map[string]*use{}}
	if before != nil {
		maps.Copy(k.uses, before.uses)
	}
	for _, e := range list {
		key := e.Key
		if key.use = k.uses[key.Name]; key.use == nil {
			key.use = &use{}
			if len(k.uses) < MaxNames {
				key.use.index = len(k.uses) + 1
				k.uses[key.Name] = key.use
			}
		}
		k.list = append(k.list, key)
		k.byDigest[key.digest] = key
	}
	return k, nil
}

// entry is a key as it stands in the file.
type entry struct {
	*Key
	line int
	salt string // off, auto or a salt
}

// parse reads the file's entries. Its errors begin with the line.
func parse(text []byte) ([]entry, error) {
	f, err := parser.ParseBytes(text, 0)
	if err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n") // an excerpt of the file would follow
		return nil, errors.New(": " + first)
	}
	var list ast.Node
	for i, doc := range f.Docs {
		if doc.Body == nil {
			continue
		}
		if i > 0 && list != nil {
			return nil, at(doc.Body, "there is a second document: put all keys into one")
		}
		if list, err = member(doc.Body, "keys"); err != nil {
			return nil, err
		}
	}
	seq, ok := list.(*ast.SequenceNode)
	if !ok || len(seq.Values) == 0 {
		return nil, errors.New(": it lists no keys: write keys: and below it one entry for each, as gateway -hash-key prints them, or set no auth.keys_file to let everyone in")
	}
	var entries []entry
	names, digests := map[string]int{}, map[[sha256.Size]byte]string{}
	for i, node := range seq.Values {
		e, err := parseEntry(node, i+1)
		if err != nil {
			return nil, err
		}
		if line, twice := names[e.Name]; twice {
			return nil, at(node, "the name %s is on line %d too: give each key its own", e.Name, line)
		}
		if other, twice := digests[e.digest]; twice {
			return nil, at(node, "key %s has the same sha256 as %s", e.Name, other)
		}
		names[e.Name], digests[e.digest] = e.line, e.Name
		entries = append(entries, e)
	}
	return entries, nil
}

// at is an error about what stands at a node.
func at(node ast.Node, format string, args ...any) error {
	return fmt.Errorf(":%d: %w", node.GetToken().Position.Line, fmt.Errorf(format, args...))
}

// member returns the only member of a map, which must have the name.
func member(node ast.Node, name string) (value ast.Node, err error) {
	m, ok := node.(ast.MapNode)
	if !ok {
		return nil, at(node, "the file must begin with %s:", name)
	}
	for it := m.MapRange(); it.Next(); {
		if it.Key().GetToken().Value != name {
			return nil, at(it.Key(), "unknown key: the only one outside of entries is %s", name)
		}
		value = it.Value()
	}
	return value, nil
}

func parseEntry(node ast.Node, number int) (entry, error) {
	e := entry{Key: &Key{}, line: node.GetToken().Position.Line, salt: "off"}
	m, ok := node.(ast.MapNode)
	if !ok {
		return e, at(node, "entry %d must have name: and sha256:", number)
	}
	label, hashed := "entry "+strconv.Itoa(number), false
	for it := m.MapRange(); it.Next(); {
		field, text, ok := it.Key().GetToken().Value, "", true
		switch it.Value().(type) {
		case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
			text = it.Value().GetToken().Value
		default:
			ok = false
		}
		wrong := func(want string) error { return at(it.Key(), "%s: %s %s", label, field, want) }
		switch field {
		case "name":
			if !ok || !validName(text) {
				return e, wrong(nameRule)
			}
			e.Name, label = text, "key "+text
		case "sha256":
			digest, err := hex.DecodeString(text)
			if !ok || err != nil || len(digest) != sha256.Size {
				return e, wrong("must be the 64 hexadecimal digits of the key's SHA-256, not the key itself: gateway -hash-key makes them")
			}
			if e.digest, hashed = [sha256.Size]byte(digest), true; e.digest == sha256.Sum256(nil) {
				return e, wrong("is that of an empty key")
			}
		case "max_requests", "max_pending_tokens":
			n, err := strconv.ParseInt(text, 10, 64)
			if !ok || err != nil || n < 1 {
				return e, wrong("must be a whole number of at least 1: leave it out for no limit")
			}
			if field == "max_requests" {
				e.MaxRequests = n
			} else {
				e.MaxPendingTokens = n
			}
		case "cache_salt":
			if !ok || !validSalt(text) {
				return e, wrong("must be auto, off, or 1 to 128 visible characters without @ / \\ \" (vLLM takes no other)")
			}
			e.salt = text
		default:
			return e, at(it.Key(), "%s: unknown key: an entry has name, sha256, max_requests, max_pending_tokens and cache_salt", label)
		}
	}
	switch {
	case e.Name == "":
		return e, at(node, "%s has no name", label)
	case !hashed:
		return e, at(node, "%s has no sha256: gateway -hash-key makes it", label)
	}
	return e, nil
}

func validSalt(text string) bool {
	return text != "" && len(text) <= 128 && !strings.ContainsAny(text, "@/\\\"") &&
		!strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// salt sets the keys' salts. One that is made must not be guessable by who knows
// the key's name, nor by who has read the file, and must be the same on all
// gateways.
func salt(list []entry, secret string) error {
	for _, e := range list {
		switch e.salt {
		case "off":
			continue
		case "auto":
			if secret == "" {
				return fmt.Errorf(":%d: key %s: cache_salt auto needs auth.salt_secret (-salt-secret), the same on all gateways", e.line, e.Name)
			}
			mac := hmac.New(sha256.New, []byte(secret))
			mac.Write([]byte("warmpath cache_salt 1\x00"))
			mac.Write(e.digest[:])
			e.salt = base64.RawURLEncoding.EncodeToString(mac.Sum(nil)) // vLLM takes no @ / \ NUL
		}
		e.Salt = []byte(`"` + e.salt + `"`)
	}
	return nil
}
