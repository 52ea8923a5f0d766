package auth

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const (
	secret = "0123456789abcdef"
	keyA   = "sk-a-0123456789abcdef"
	keyB   = "sk-b-0123456789abcdef"
)

func digest(key string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(key))) }

// write makes a file of keys.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, text string, before *Keys) *Keys {
	t.Helper()
	k, err := Read(Config{KeysFile: write(t, text), SaltSecret: secret}, before)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func list(entries ...string) string {
	text := "keys:\n"
	for _, e := range entries {
		text += "  - {" + e + "}\n"
	}
	return text
}

func entryOf(name, key string, more ...string) string {
	return strings.Join(append([]string{"name: " + name, "sha256: " + digest(key)}, more...), ", ")
}

func TestKeysAreFoundWhereverClientsPutThem(t *testing.T) {
	k := read(t, list(entryOf("a", keyA), entryOf("b", keyB)), nil)
	f := func(want string, header ...string) {
		t.Helper()
		h := http.Header{}
		for i := 0; i < len(header); i += 2 {
			h.Add(header[i], header[i+1])
		}
		got := ""
		if key := k.Find(h); key != nil {
			got = key.Name
		}
		if got != want {
			t.Errorf("%q: found %q, want %q", header, got, want)
		}
	}
	f("a", "Authorization", "Bearer "+keyA)
	f("a", "authorization", "bearer  "+keyA+" ")
	f("b", "x-api-key", keyB)
	f("b", "api-key", keyB)
	f("b", "Authorization", "Bearer dummy", "X-Api-Key", keyB)
	f("a", "Authorization", "Bearer "+keyA, "X-Api-Key", keyB)
	f("")
	f("", "Authorization", "Bearer ")
	f("", "Authorization", keyA)
	f("", "Authorization", "Basic "+keyA)
	f("", "Authorization", "Bearer "+keyA+"x")
	f("", "Authorization", "Bearer "+keyA[:len(keyA)-1])
	f("", "Authorization", "Bearer "+digest(keyA))
	f("", "X-Api-Key", strings.Repeat("x", maxCredential+1))
	f("", "Cookie", keyA)
	f("", "Proxy-Authorization", "Bearer "+keyA)
	h := http.Header{"Authorization": {"Bearer " + keyA}}
	if n := testing.AllocsPerRun(100, func() { k.Find(h) }); n > 0 {
		t.Errorf("finding a key allocates %v times", n)
	}
}

func TestLongestCredentialIsFound(t *testing.T) {
	long := strings.Repeat("x", maxCredential)
	if read(t, list(entryOf("a", long)), nil).Find(http.Header{"X-Api-Key": {long}}) == nil {
		t.Error("not found")
	}
}

func TestBadFilesAreRefusedByLineAndKeyAndNotQuoted(t *testing.T) {
	good := entryOf("a", keyA)
	for _, c := range []struct{ text, want string }{
		{"", ": it lists no keys"},
		{"# nothing\n", ": it lists no keys"},
		{"keys: []\n", ": it lists no keys"},
		{"keys:\n", ": it lists no keys"},
		{"keys: TOPSECRET\n", ": it lists no keys"},
		{"TOPSECRET\n", ":1: the file must begin with keys:"},
		{"- TOPSECRET\n", ":1: the file must begin with keys:"},
		{"TOPSECRET: 1\n", ":1: unknown key: the only one outside of entries is keys"},
		{list(good) + "---\n" + list(entryOf("b", keyB)), ":4: there is a second document"},
		{list(good, "TOPSECRET"), ":3: entry 2"},
		{list(good) + "  - TOPSECRET\n", ":3: entry 2 must have name: and sha256:"},
		{list("sha256: " + digest(keyA)), ":2: entry 1 has no name"},
		{list("name: b"), ":2: key b has no sha256: gateway -hash-key"},
		{list("name: b, sha256: TOPSECRET"), ":2: key b: sha256 must be the 64 hexadecimal digits of the key's SHA-256, not the key itself: gateway -hash-key makes them"},
		{list("sha256: TOPSECRET, name: b"), ":2: entry 1: sha256 must be the 64"},
		{list("name: b, sha256: [TOPSECRET]"), ":2: key b: sha256 must be"},
		{list("name: b, sha256: " + digest(keyA)[2:]), ":2: key b: sha256 must be"},
		{list(entryOf("b", "")), ":2: key b: sha256 is that of an empty key"},
		{list(entryOf("'b c'", keyA)), ":2: entry 1: name must have 1 to 64 characters out of"},
		{list(entryOf("TOPSECRETü", keyA)), ":2: entry 1: name must"},
		{list(entryOf("other", keyA)), ":2: entry 1: name must"},
		{list(entryOf(strings.Repeat("n", 65), keyA)), ":2: entry 1: name must"},
		{list(good, entryOf("a", keyB)), ":3: the name a is on line 2 too"},
		{list(good, entryOf("b", keyA)), ":3: key b has the same sha256 as a"},
		{list(entryOf("b", keyA, "max_requests: 0")), ":2: key b: max_requests must be a whole number of at least 1"},
		{list(entryOf("b", keyA, "max_requests: -3")), ":2: key b: max_requests must be"},
		{list(entryOf("b", keyA, "max_pending_tokens: TOPSECRET")), ":2: key b: max_pending_tokens must be"},
		{list(entryOf("b", keyA, "cache_salt: 'a/TOPSECRET'")), ":2: key b: cache_salt must be auto, off, or"},
		{list(entryOf("b", keyA, "cache_salt: ''")), ":2: key b: cache_salt must be"},
		{list(entryOf("b", keyA, "cache_salt: "+strings.Repeat("x", 129))), ":2: key b: cache_salt must be"},
		{list(entryOf("b", keyA, "TOPSECRET: x")), ":2: key b: unknown key: an entry has name,"},
		{list(entryOf("b", keyA, "name: c")), `: [2:`},
		{"keys:\n  - name: [TOPSECRET\n", ": [2:"},
		{"keys:\n  - name: \"TOPSECRET\n", ": [2:"},
	} {
		path := write(t, c.text)
		_, err := Read(Config{KeysFile: path, SaltSecret: secret}, nil)
		if err == nil || !strings.HasPrefix(err.Error(), "auth.keys_file "+path+c.want) {
			t.Errorf("%s: got %v, want …%s", c.text, err, c.want)
		} else if strings.Contains(err.Error(), "TOPSECRET") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error quotes it: %v", c.text, err)
		}
	}
	if _, err := Read(Config{KeysFile: "testdata/none"}, nil); err == nil || !strings.Contains(err.Error(), "auth.keys_file: open testdata/none") {
		t.Error(err)
	}
	path := write(t, list(entryOf("b", keyA, "cache_salt: auto")))
	if _, err := Read(Config{KeysFile: path}, nil); err == nil || !strings.Contains(err.Error(), ":2: key b: cache_salt auto needs auth.salt_secret") {
		t.Error(err)
	}
	if k, err := Read(Config{}, nil); k != nil || err != nil {
		t.Error("no file:", k, err)
	}
}

func TestSaltsCannotBeGuessedAndAreTheSameEverywhere(t *testing.T) {
	salt := func(secret, name, key, setting string) string {
		t.Helper()
		k, err := Read(Config{KeysFile: write(t, list(entryOf(name, key, setting))), SaltSecret: secret}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return string(k.List()[0].Salt)
	}
	auto := salt(secret, "a", keyA, "cache_salt: auto")
	if again := salt(secret, "renamed", keyA, "cache_salt: auto"); again != auto {
		t.Errorf("another gateway has %s, not %s", again, auto)
	}
	if salt(secret, "a", keyB, "cache_salt: auto") == auto || salt(secret+"x", "a", keyA, "cache_salt: auto") == auto {
		t.Error("it depends on the name alone")
	}
	if text := strings.Trim(auto, `"`); len(text) < 40 || !validSalt(text) {
		t.Errorf("vLLM takes no %s", auto)
	}
	if got := salt("", "a", keyA, "cache_salt: team"); got != `"team"` {
		t.Errorf("a written salt is %s", got)
	}
	if got := salt("", "a", keyA, "cache_salt: 12"); got != `"12"` {
		t.Errorf("a number as salt is %s", got)
	}
	for _, none := range []string{"cache_salt: off", "max_requests: 1"} {
		if got := salt(secret, "a", keyA, none); got != "" {
			t.Errorf("%s: salt %s", none, got)
		}
	}
}

func TestLimitsHoldExactly(t *testing.T) {
	k := read(t, list(entryOf("a", keyA, "max_requests: 3", "max_pending_tokens: 100"), entryOf("b", keyB)), nil)
	a, b := k.List()[0], k.List()[1]
	for range 3 {
		if !a.Begin() {
			t.Fatal("refused below the limit")
		}
	}
	if a.Begin() {
		t.Error("a fourth was let in")
	}
	a.End()
	if !a.Begin() || a.Requests() != 3 {
		t.Error("an ended one still counts")
	}
	if !a.Hold(150) {
		t.Error("a prompt that waits alone was refused")
	}
	if a.Hold(1) {
		t.Error("beyond the limit")
	}
	a.Release(100)
	if !a.Hold(50) || a.Hold(1) || a.PendingTokens() != 100 {
		t.Errorf("%d pending", a.PendingTokens())
	}
	for range 1000 {
		if !b.Begin() || !b.Hold(1000) {
			t.Fatal("a key without limits was refused")
		}
	}
	a.End()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				if a.Begin() {
					if n := a.Requests(); n > 3 {
						t.Errorf("%d in flight", n)
					}
					a.End()
				}
			}
		})
	}
	wg.Wait()
	if a.Requests() != 2 {
		t.Errorf("%d in flight when all have ended but two", a.Requests())
	}
}

func TestAReplacedSetKeepsWhatIsUnderWay(t *testing.T) {
	first := read(t, list(entryOf("a", keyA, "max_requests: 1")), nil)
	a := first.List()[0]
	a.Begin()
	a.Hold(10)
	second := read(t, list(entryOf("b", keyB), entryOf("a", keyA+"new", "max_requests: 2")), first)
	now := second.List()[1]
	if now.Requests() != 1 || now.PendingTokens() != 10 || now.Index() != a.Index() || second.List()[0].Index() == a.Index() {
		t.Errorf("got %d requests, %d tokens, index %d", now.Requests(), now.PendingTokens(), now.Index())
	}
	if second.Find(http.Header{"X-Api-Key": {keyA}}) != nil {
		t.Error("the old key still lets in")
	}
	if !now.Begin() || now.Begin() {
		t.Error("the new limit does not hold")
	}
	gone := read(t, list(entryOf("b", keyB)), second)
	back := read(t, list(entryOf("a", keyA)), gone).List()[0]
	a.End()
	now.End()
	if back.Requests() != 0 || back.Index() != a.Index() {
		t.Errorf("after it was away: %d requests, index %d", back.Requests(), back.Index())
	}
}

func TestNamesAreBoundedOverAProcessLife(t *testing.T) {
	var k *Keys
	for round := range 3 {
		var entries []string
		for i := range 200 {
			entries = append(entries, entryOf(fmt.Sprintf("n%d-%d", round, i), fmt.Sprint(round, i)))
		}
		k = read(t, list(entries...), k)
	}
	for _, key := range k.List() {
		if key.Index() != 0 || !key.Begin() || key.Requests() != 1 {
			t.Fatalf("%s has index %d", key.Name, key.Index())
		}
	}
	if len(k.uses) != MaxNames {
		t.Errorf("%d names are kept", len(k.uses))
	}
}

func TestEntriesCanBeRead(t *testing.T) {
	text, err := Entry("team-a", keyA)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, keyA) {
		t.Error("the entry has the key itself")
	}
	if key := read(t, "keys:\n"+text, nil).Find(http.Header{"X-Api-Key": {keyA}}); key == nil || key.Name != "team-a" {
		t.Error("its key lets nobody in")
	}
	for _, bad := range [][2]string{{"a b", keyA}, {"", keyA}, {"a", "short"}, {"a", ""}, {"a", strings.Repeat("x", 600)}} {
		if _, err := Entry(bad[0], bad[1]); err == nil || bad[1] != "" && strings.Contains(err.Error(), bad[1]) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(list(entryOf("a", keyA, "max_requests: 3", "cache_salt: auto"), entryOf("b", keyB, "cache_salt: x"))))
	f.Add([]byte("keys:\n- name: a\n  sha256: 1\n---\nkeys: {}\n"))
	f.Add([]byte("keys: &a\n- *a\n"))
	f.Add([]byte("keys:\n- {name: a, sha256: !x y}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		entries, err := parse(text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), ":") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if len(entries) == 0 {
			t.Fatalf("%q: no keys and no error", text)
		}
		if err := salt(entries, secret); err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !validName(e.Name) || e.digest == sha256.Sum256(nil) || e.digest == [32]byte{} && !strings.Contains(string(text), "0000") || e.MaxRequests < 0 || e.MaxPendingTokens < 0 {
				t.Errorf("%q: accepted %+v", text, e)
			}
		}
	})
}
