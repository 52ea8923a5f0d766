package source

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// bucket is a prefix of an S3 bucket.
type bucket struct {
	// connect makes the client at the first request: looking for credentials may ask
	// the network, and a model that is here must not wait for it.
	connect      func() (*minio.Core, error)
	name, prefix string
}

const (
	// amazon is the endpoint when none is set.
	amazon = "https://s3.amazonaws.com"
	// roleTimeout is how long the node's metadata service may take to give credentials;
	// where there is none, nothing may answer at all.
	roleTimeout = 3 * time.Second
)

// newBucket finds credentials as Amazon's own tools do: AWS_ACCESS_KEY_ID and
// AWS_SECRET_ACCESS_KEY, then ~/.aws/credentials, then the node's or the service
// account's role. Without any, requests are anonymous.
func newBucket(name, prefix string, cfg Config, lookup func(string) (string, bool)) (*bucket, error) {
	if name == "" {
		return nil, errors.New("model.repository names no bucket")
	}
	get := func(set string, names ...string) string {
		for _, n := range names {
			if value, ok := lookup(n); ok && set == "" {
				set = value
			}
		}
		return set
	}
	endpoint := get(cfg.Endpoint, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
	if endpoint == "" {
		endpoint = amazon
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("source.endpoint (or AWS_ENDPOINT_URL) is %q, must be a URL of scheme and host alone, as https://s3.example.com", Redacted(endpoint))
	}
	region := get(cfg.Region, "AWS_REGION", "AWS_DEFAULT_REGION")
	return &bucket{name: name, prefix: prefix, connect: sync.OnceValues(func() (*minio.Core, error) {
		return minio.NewCore(u.Host, &minio.Options{
			Creds: findCredentials(), Secure: u.Scheme == "https", Region: region, Transport: transport(),
			MaxRetries: 1, // the download has its own, which know what has arrived
		})
	})}, nil
}

// findCredentials looks once. The chain would look again before each anonymous request.
func findCredentials() *credentials.Credentials {
	client := &http.Client{Timeout: roleTimeout}
	chain := credentials.NewChainCredentials([]credentials.Provider{
		&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{Client: client},
	})
	value, err := chain.GetWithContext(&credentials.CredContext{Client: client})
	if err != nil || value.SignerType.IsAnonymous() {
		return credentials.NewStatic("", "", "", credentials.SignatureAnonymous)
	}
	return chain
}

func (b *bucket) key(path string) string {
	if b.prefix == "" {
		return path
	}
	return b.prefix + "/" + path
}

// List lists the prefix.
func (b *bucket) List(ctx context.Context, each func(Object) bool) error {
	core, err := b.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the listing's goroutine when we leave early
	prefix := b.key("")
	for info := range core.Client.ListObjects(ctx, b.name, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if info.Err != nil {
			return b.explain(info.Err, prefix, 0)
		}
		if strings.HasSuffix(info.Key, "/") && info.Size == 0 {
			continue // a folder that some console made
		}
		if !each(Object{Path: strings.TrimPrefix(info.Key, prefix), Size: info.Size, Version: quoted(info.ETag)}) {
			return nil
		}
	}
	return ctx.Err()
}

// Open sends a GET with If-Match.
func (b *bucket) Open(ctx context.Context, path string, offset, length int64, version string) (*Body, error) {
	key := b.key(path)
	opts := minio.GetObjectOptions{}
	if ranged := byteRange(offset, length); ranged != "" {
		opts.Set("Range", ranged)
	}
	if version != "" {
		opts.Set("If-Match", version)
	}
	core, err := b.connect()
	if err != nil {
		return nil, err
	}
	object, info, header, err := core.GetObject(ctx, b.name, key, opts)
	if err != nil {
		return nil, b.explain(err, key, offset)
	}
	status := http.StatusOK
	if header.Get("Content-Range") != "" {
		status = http.StatusPartialContent
	}
	body, err := readHeader(status, header, info.Size, offset)
	if err != nil {
		_ = object.Close()
		return nil, fmt.Errorf("s3://%s/%s: %w", b.name, key, err)
	}
	body.ReadCloser = object
	return body, nil
}

// explain turns the client's error into one that Permanent can judge.
func (b *bucket) explain(err error, key string, offset int64) error {
	where := fmt.Sprintf("s3://%s/%s", b.name, key)
	answer := minio.ToErrorResponse(err)
	if answer.StatusCode == 0 {
		return fmt.Errorf("%s: %w", where, err)
	}
	if _, judged := readHeader(answer.StatusCode, http.Header{}, -1, offset); judged != nil {
		return fmt.Errorf("%s: %s: %w", where, answer.Message, judged)
	}
	return fmt.Errorf("%s: %w", where, err)
}

// quoted is an ETag as headers have it; listings leave its quotes out.
func quoted(etag string) string {
	if etag == "" || strings.HasPrefix(etag, `"`) {
		return etag
	}
	return `"` + etag + `"`
}
