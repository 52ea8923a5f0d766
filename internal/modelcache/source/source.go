// Package source reads models from where they are kept: an S3-compatible object
// store, an HTTP server or a directory. It moves bytes and proves nothing: the
// caller hashes what it gets.
package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"strings"
)

var (
	// ErrChanged means that a file is no longer the version that was asked for.
	ErrChanged = errors.New("the file changed at the source during the download")
	// ErrNoListing means that a source cannot say which files there are.
	ErrNoListing = errors.New("the source has no listing")
)

// Permanent tells that asking again cannot help.
func Permanent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrChanged) ||
		errors.Is(err, ErrNoListing) || errors.Is(err, fs.ErrInvalid) || errors.Is(err, context.Canceled)
}

// Object is a file at a source.
type Object struct {
	// Path is relative to the source, unchecked.
	Path string
	// Size is in bytes.
	Size int64
	// Version changes when the content does (an ETag), "" if that is unknown.
	Version string
}

// Body is a part of a file on its way. The caller closes it.
type Body struct {
	io.ReadCloser
	// Offset is where in the file the bytes begin. It is 0 and not the asked one if
	// the source does not serve ranges.
	Offset int64
	// Size is the whole file's, -1 if the source does not tell.
	Size int64
	// Version is the file's, "" if the source does not tell.
	Version string
	// Encoding is what the source says it did to the bytes (Content-Encoding), although
	// it was asked for them as they are; "" if nothing.
	Encoding string
}

// Source is one revision of a repository. Its methods may be called from many
// goroutines.
type Source interface {
	// List calls each with all files in any order, until it returns false. The error is
	// ErrNoListing if the source cannot say what there is.
	List(ctx context.Context, each func(Object) bool) error
	// Open reads length bytes from offset, all that follow if length is negative. A
	// version that is not "" must be the file's; ErrChanged otherwise. A file that is
	// not there is fs.ErrNotExist.
	Open(ctx context.Context, path string, offset, length int64, version string) (*Body, error)
}

// Config is how a source is reached. Secrets are not in it: they come from the
// environment, as the package's functions say.
type Config struct {
	// Endpoint is the S3 server's URL. "" means AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL,
	// or Amazon's.
	Endpoint string `yaml:"endpoint"`
	// Region of the bucket. "" means AWS_REGION, or what the server says.
	Region string `yaml:"region"`
}

// Redacted is a repository without the password and the query that its URL may have:
// what may be logged, and kept where others read it.
func Redacted(repository string) string {
	if !strings.HasPrefix(repository, "http://") && !strings.HasPrefix(repository, "https://") {
		return repository
	}
	scheme, rest, _ := strings.Cut(repository, "://")
	rest, _, _ = strings.Cut(rest, "?")
	authority, path, slash := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		authority = authority[i+1:]
	}
	if slash {
		path = "/" + path
	}
	return scheme + "://" + authority + path
}

// objectStorage begins a repository that names a bucket of whatever object store
// the node is configured for.
const objectStorage = "object-storage/"

// New returns the source of a repository's revision. Repositories are
//
//	object-storage/BUCKET/PREFIX or s3://BUCKET/PREFIX
//	http://… or https://…
//	/DIRECTORY or file:///DIRECTORY
//
// The revision is put where the repository has {revision}, else behind it as
// another path element. lookup finds environment variables.
func New(repository, revision string, cfg Config, lookup func(string) (string, bool)) (Source, error) {
	if strings.Contains(revision, "..") || strings.ContainsAny(revision, "\\?#") {
		return nil, fmt.Errorf("model.revision is %q, must be a plain name", revision)
	}
	full := strings.ReplaceAll(repository, "{revision}", revision)
	if full == repository && revision != "" {
		if strings.HasPrefix(repository, "http") && strings.ContainsAny(repository, "?#") {
			return nil, fmt.Errorf("model.repository %q has a query: write {revision} into it where model.revision belongs", Redacted(repository))
		}
		full = strings.TrimRight(repository, "/") + "/" + revision
	}
	if rest, ok := strings.CutPrefix(full, objectStorage); ok {
		full = "s3://" + rest
	}
	if strings.HasPrefix(full, "/") {
		return newDir(full), nil
	}
	u, err := url.Parse(full)
	if err != nil {
		return nil, errors.New("model.repository is not a URL that can be read (it is not shown, as it may have a password)")
	}
	switch u.Scheme {
	case "s3":
		return newBucket(u.Host, strings.Trim(u.Path, "/"), cfg, lookup)
	case "http", "https":
		token, _ := lookup("MODELCACHE_TOKEN")
		return newWeb(u, token), nil
	case "file":
		return newDir(u.Path), nil
	}
	return nil, fmt.Errorf("model.repository is %q, must begin with object-storage/, s3://, http://, https://, file:// or /", repository)
}
