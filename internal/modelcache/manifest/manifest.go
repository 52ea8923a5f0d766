// Package manifest says what a model is: the files it consists of, each with its
// size and SHA-256, in one canonical text whose own SHA-256 is the model's digest.
//
// The text has a line for each file, sorted by path, behind a line with the
// format's name:
//
//	modelcache-manifest 1
//	<64 hex digits> <bytes> <path>
//
// A model's digest is the SHA-256 of this text, whether the text was published
// beside the files or made from them: the order in which a directory is walked or
// a bucket is listed cannot change it.
package manifest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// Name is the file beside a model's files that holds its manifest. It is no part
	// of the model.
	Name = "modelcache.manifest"
	// MaxBytes is the longest manifest that is read.
	MaxBytes = 16 << 20

	header    = "modelcache-manifest 1"
	algorithm = "sha256:"
	// Linux's NAME_MAX and a little less than PATH_MAX, so that a path still fits
	// behind the cache's own.
	maxElement, maxPath = 255, 3072
)

// Digest is a SHA-256 as "sha256:" and 64 lower-case hex digits. Values that come
// from outside are made by ParseDigest alone, so that a Digest is safe in a file
// name.
type Digest string

// ParseDigest checks a digest's form.
func ParseDigest(text string) (Digest, error) {
	digits, ok := strings.CutPrefix(text, algorithm)
	if !ok {
		return "", fmt.Errorf("digest %q does not begin with %s", text, algorithm)
	}
	if len(digits) != 2*sha256.Size || strings.Trim(digits, "0123456789abcdef") != "" {
		return "", fmt.Errorf("digest %q is not %s and 64 lower-case hex digits", text, algorithm)
	}
	return Digest(text), nil
}

// SumDigest is the digest with the given sum.
func SumDigest(sum []byte) Digest { return Digest(algorithm + hex.EncodeToString(sum)) }

// Hex returns the 64 digits.
func (d Digest) Hex() string { return strings.TrimPrefix(string(d), algorithm) }

// File is one file of a model.
type File struct {
	// Path is relative to the model, with forward slashes; CheckPath accepts it.
	Path string
	// Size is in bytes.
	Size   int64
	Digest Digest
}

// Manifest is a model's files, sorted by path. It is not changed once made.
type Manifest struct {
	Files []File
}

// New makes a manifest of files in any order.
func New(files []File) (*Manifest, error) {
	if len(files) == 0 {
		return nil, errors.New("a model without files")
	}
	sorted := slices.Clone(files)
	slices.SortFunc(sorted, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	paths := make([]string, 0, len(sorted))
	for _, f := range sorted {
		paths = append(paths, f.Path)
		if _, err := ParseDigest(string(f.Digest)); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
		if f.Size < 0 {
			return nil, fmt.Errorf("%s: %d bytes", f.Path, f.Size)
		}
	}
	if err := CheckPaths(paths); err != nil {
		return nil, err
	}
	return &Manifest{Files: sorted}, nil
}

// Parse reads a manifest. Line ends of Windows, blank lines and another order of
// files are accepted; they do not change the digest.
func Parse(text []byte) (*Manifest, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("manifest of %d bytes, at most %d are read", len(text), MaxBytes)
	}
	var files []File
	headed := false
	number := 0
	for line := range bytes.Lines(text) {
		number++
		s := strings.TrimRight(string(line), "\r\n")
		switch {
		case s == "":
		case !headed:
			if s != header {
				return nil, fmt.Errorf("manifest does not begin with the line %q", header)
			}
			headed = true
		default:
			f, err := parseFile(s)
			if err != nil {
				return nil, fmt.Errorf("manifest, line %d: %w", number, err)
			}
			files = append(files, f)
		}
	}
	m, err := New(files)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return m, nil
}

func parseFile(line string) (File, error) {
	digits, rest, _ := strings.Cut(line, " ")
	length, path, ok := strings.Cut(rest, " ")
	if !ok {
		return File{}, errors.New("not of the form <sha256> <bytes> <path>")
	}
	digest, err := ParseDigest(algorithm + digits)
	if err != nil {
		return File{}, err
	}
	size, err := strconv.ParseInt(length, 10, 64)
	if err != nil || size < 0 || strconv.FormatInt(size, 10) != length {
		return File{}, fmt.Errorf("size %q is not a number of bytes", length)
	}
	return File{Path: path, Size: size, Digest: digest}, CheckPath(path)
}

// Text returns the canonical form.
func (m *Manifest) Text() []byte {
	var b bytes.Buffer
	b.WriteString(header + "\n")
	for _, f := range m.Files {
		fmt.Fprintf(&b, "%s %d %s\n", f.Digest.Hex(), f.Size, f.Path)
	}
	return b.Bytes()
}

// Digest returns the model's digest: the SHA-256 of Text.
func (m *Manifest) Digest() Digest {
	sum := sha256.Sum256(m.Text())
	return SumDigest(sum[:])
}

// Bytes returns the sum of the files' sizes.
func (m *Manifest) Bytes() int64 {
	var sum int64
	for _, f := range m.Files {
		sum += f.Size
	}
	return sum
}

// CheckPaths says what keeps files from being one model: a path that CheckPath
// refuses, one that is there twice, or one that is a file and a directory.
func CheckPaths(paths []string) error {
	seen := make(map[string]bool, len(paths))
	for _, path := range paths {
		if err := CheckPath(path); err != nil {
			return err
		}
		if seen[path] {
			return fmt.Errorf("%s is there twice", path)
		}
		seen[path] = true
	}
	for _, path := range paths {
		for i, c := range path {
			if c == '/' && seen[path[:i]] {
				return fmt.Errorf("%s is a file and a directory", path[:i])
			}
		}
	}
	return nil
}

// CheckPath says what is wrong with a file's path. What it accepts is relative,
// stays below the directory it is joined to, and means the same everywhere.
func CheckPath(path string) error {
	bad := func(why string) error { return fmt.Errorf("file name %q %s", path, why) }
	switch {
	case path == "" || path == ".":
		return bad("is empty")
	case path == Name:
		return bad("is the manifest's own")
	case len(path) > maxPath:
		return bad("is too long")
	case !utf8.ValidString(path) || strings.ContainsFunc(path, unicode.IsControl):
		return bad("has control characters or is not UTF-8")
	case strings.Contains(path, `\`):
		return bad("has a backslash")
	case !fs.ValidPath(path):
		return bad("leaves the model's directory or is not in its shortest form")
	}
	for element := range strings.SplitSeq(path, "/") {
		if len(element) > maxElement {
			return bad("is too long")
		}
	}
	return nil
}
