package manifest

import (
	"crypto/sha256"
	"slices"
	"strings"
	"testing"
)

func digestOf(text string) Digest {
	sum := sha256.Sum256([]byte(text))
	return SumDigest(sum[:])
}

// leaving are names that must never reach the disk.
var leaving = []string{
	"", ".", "..", "/", "/etc/passwd", "../../x", "a/../../x", "a/..", "a//b", "a/", "./a", "a/./b",
	`..\x`, `a\b`, "a\x00b", "a\nb", "a\x7fb", "\xff", Name, strings.Repeat("x", 256), strings.Repeat("x/", 2000) + "x",
}

func TestNamesThatLeaveTheDirectoryAreRefused(t *testing.T) {
	for _, name := range leaving {
		if CheckPath(name) == nil {
			t.Errorf("%q is accepted", name)
		}
		if _, err := New([]File{{Path: name, Digest: digestOf("x")}}); err == nil {
			t.Errorf("a manifest with %q is accepted", name)
		}
	}
	for _, name := range []string{"config.json", "a/b/c.safetensors", "model 1.bin", "权重.bin", "a..b", ".hidden", "sub/" + Name} {
		if err := CheckPath(name); err != nil {
			t.Error(err)
		}
	}
}

func TestDigestsOfAnotherFormAreRefused(t *testing.T) {
	good := string(digestOf("x"))
	for _, text := range []string{
		"", "sha256:", good[:len(good)-1], good + "0", strings.ToUpper(good), "sha512:" + good[7:], good[7:], " " + good, good + "\n",
		"sha256:../../x", "sha256:" + strings.Repeat("/", 64), "sha256:REPLACE_WITH_REAL_DIGEST",
	} {
		if d, err := ParseDigest(text); err == nil {
			t.Errorf("%q is accepted as %s", text, d)
		}
	}
}

func TestOneModelHasOneDigest(t *testing.T) {
	files := []File{
		{Path: "b", Size: 2, Digest: digestOf("b")}, {Path: "a/c", Size: 1, Digest: digestOf("c")}, {Path: "a.b", Size: 0, Digest: digestOf("")},
	}
	m, err := New(files)
	if err != nil {
		t.Fatal(err)
	}
	if got := digestOf(string(m.Text())); got != m.Digest() {
		t.Errorf("the text has %s, the manifest %s", got, m.Digest())
	}
	slices.Reverse(files)
	again, err := New(files)
	if err != nil || again.Digest() != m.Digest() {
		t.Errorf("another order: %v, %v", again, err)
	}
	lines := strings.Split(strings.TrimSpace(string(m.Text())), "\n")
	byHand := "\r\n" + lines[0] + "\r\n" + lines[3] + "\r\n\r\n" + lines[1] + "\r\n" + lines[2]
	parsed, err := Parse([]byte(byHand))
	if err != nil || parsed.Digest() != m.Digest() {
		t.Errorf("by hand: %v, %v", parsed, err)
	}
	other := slices.Clone(files)
	other[0].Size++
	if o, err := New(other); err != nil || o.Digest() == m.Digest() {
		t.Errorf("another size has the same digest: %v", err)
	}
}

func TestManifestsThatMeanNothingAreRefused(t *testing.T) {
	hex := digestOf("x").Hex()
	for _, text := range []string{
		"", header, header + "\n", hex + " 1 a\n", "modelcache-manifest 2\n" + hex + " 1 a\n",
		header + "\n" + hex + " a\n", header + "\n" + hex + " -1 a\n", header + "\n" + hex + " 01 a\n", header + "\n" + hex + " 9223372036854775808 a\n",
		header + "\n" + hex + " 1 ../a\n", header + "\n" + strings.ToUpper(hex) + " 1 a\n", header + "\n" + hex[1:] + " 1 a\n",
		header + "\n" + hex + " 1 a\n" + hex + " 1 a\n", header + "\n" + hex + " 1 a\n" + hex + " 1 a/b\n", header + "\n" + hex + " 1 \n",
	} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
	if _, err := Parse(make([]byte, MaxBytes+1)); err == nil {
		t.Error("a manifest of any length is accepted")
	}
}

func FuzzParse(f *testing.F) {
	hex := digestOf("x").Hex()
	f.Add([]byte(header + "\n" + hex + " 1 a\n"))
	f.Add([]byte(header + "\r\n" + hex + " 0 a/b c\r\n" + hex + " 17 z\n"))
	for _, name := range leaving {
		f.Add([]byte(header + "\n" + hex + " 1 " + name + "\n"))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(m.Text())
		if err != nil || again.Digest() != m.Digest() {
			t.Fatalf("%q is not read back: %v", m.Text(), err)
		}
		for _, file := range m.Files {
			if CheckPath(file.Path) != nil || file.Size < 0 {
				t.Errorf("%+v", file)
			}
		}
	})
}
