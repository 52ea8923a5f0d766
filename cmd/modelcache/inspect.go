package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/warmpath/warmpath/internal/modelcache"
	"github.com/warmpath/warmpath/internal/modelcache/manifest"
	"github.com/warmpath/warmpath/internal/modelcache/source"
	"github.com/warmpath/warmpath/internal/modelcache/store"
)

// place is the flags that say which cache.
type place struct{ config, dir *string }

func (c *command) place() place {
	return place{
		config: c.flags.String("config", "", "YAML `file` that names the cache"),
		dir:    c.flags.String("cache", "", "the cache's `directory`, instead of -config"),
	}
}

// open opens a cache that must be there already.
func (p place) open() (*store.Store, error) {
	cfg := store.Config{Path: *p.dir, MaxBytes: math.MaxInt64 / 2, High: 1, Low: 1}
	switch {
	case (*p.config == "") == (*p.dir == ""):
		return nil, errors.New("one of -config and -cache must be set, to say which cache")
	case *p.config != "":
		loaded, err := modelcache.Load(*p.config)
		if err != nil {
			return nil, err
		}
		cfg = loaded.Store()
	}
	cfg.Existing = true
	return store.Open(cfg)
}

// find returns the models that a word names: a digest, six or more of its first
// digits, a repository, or repository and revision with a blank or @ between.
func find(s *store.Store, word string) (*store.Entry, error) {
	entries, err := s.Entries()
	if err != nil {
		return nil, err
	}
	digits := strings.TrimPrefix(strings.TrimPrefix(word, "sha256:"), "sha256-")
	var found []*store.Entry
	for _, e := range entries {
		repository, _, _ := strings.Cut(e.Source, " ")
		if len(digits) >= 6 && strings.HasPrefix(e.Model.Hex(), digits) || word == repository || word == e.Source || word == strings.Replace(e.Source, " ", "@", 1) {
			found = append(found, e)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("no model %q in the cache; modelcache list shows what there is", word)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%q is %d models; name one by its digest (modelcache list)", word, len(found))
}

func list(_ context.Context, c *command) error {
	where := c.place()
	asJSON := c.flags.Bool("json", false, "one JSON document")
	if _, err := c.parse("-config model.yaml | -cache DIR\n\nShows the models in the cache, least recently used first.", 0, 0); err != nil {
		return err
	}
	s, err := where.open()
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	entries, err := s.Entries()
	if err != nil {
		return err
	}
	used, err := s.Used()
	if err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(c.out).Encode(map[string]any{"models": entries, "used_bytes": used})
	}
	table := tabwriter.NewWriter(c.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "DIGEST\tSOURCE\tSIZE\tSTATE\tLAST USE\tKEPT BY")
	for _, e := range entries {
		state := "incomplete"
		if e.Published {
			state = "published"
		}
		kept := append([]string{}, e.Pins...)
		for _, l := range e.Leases {
			if l.Expires.After(time.Now()) {
				kept = append(kept, fmt.Sprintf("%s (lease %s)", l.Holder, l.ID))
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", e.Model, e.Source, size(e.Bytes), state, e.LastUse.Format(time.DateTime), strings.Join(kept, ", "))
	}
	fmt.Fprintf(table, "\ndisk used: %s\n", size(used))
	return table.Flush()
}

func verify(ctx context.Context, c *command) error {
	where := c.place()
	words, err := c.parse(`-config model.yaml | -cache DIR  [MODEL ...]

Hashes every file of the models, all without MODEL. A wrong file is named and marked, so
that the next ensure replaces it; the exit code is then 1.`, 0, math.MaxInt)
	if err != nil {
		return err
	}
	s, err := where.open()
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	var which []manifest.Digest
	if len(words) == 0 {
		entries, err := s.Entries()
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Published {
				which = append(which, e.Model)
			}
		}
	}
	for _, word := range words {
		e, err := find(s, word)
		if err != nil {
			return err
		}
		which = append(which, e.Model)
	}
	began := time.Now()
	report, err := s.Verify(ctx, which, nil)
	if err != nil {
		return err
	}
	for _, f := range report.Faults {
		fmt.Fprintf(c.out, "%s %s: %s\n", f.Model, f.Path, f.Why)
	}
	took := time.Since(began)
	fmt.Fprintf(c.out, "%d models, %d files, %s in %v (%.2f GB/s)\n", len(which), report.Files, size(report.Bytes), took.Round(time.Millisecond), float64(report.Bytes)/1e9/took.Seconds())
	if n := len(report.Faults); n > 0 {
		return fmt.Errorf("%d files are wrong; modelcache ensure replaces them", n)
	}
	return nil
}

func evict(ctx context.Context, c *command) error {
	where := c.place()
	words, err := c.parse(`-config model.yaml | -cache DIR  [MODEL ...]

Removes the models; without MODEL, least recently used ones down to the low watermark if
the cache is above the high one. One that is pinned, leased, being pulled or open in a
process stays.`, 0, math.MaxInt)
	if err != nil {
		return err
	}
	s, err := where.open()
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	if len(words) == 0 {
		evicted, err := s.Trim(ctx)
		for _, e := range evicted {
			fmt.Fprintln(c.out, e.Model, e.Source)
		}
		return err
	}
	var failed error
	for _, word := range words {
		e, err := find(s, word)
		if err == nil {
			err = s.Evict(ctx, e.Model)
		}
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		fmt.Fprintln(c.out, e.Model, e.Source)
	}
	return failed
}

func unpin(ctx context.Context, c *command) error {
	where := c.place()
	pin := c.flags.String("pin", "", "only the pin of this `name`")
	words, err := c.parse("-config model.yaml | -cache DIR  MODEL\n\nRemoves the model's pins, or one of them.", 1, 1)
	if err != nil {
		return err
	}
	s, err := where.open()
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	e, err := find(s, words[0])
	if err != nil {
		return err
	}
	n, err := s.Unpin(ctx, e.Model, *pin)
	if err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("%s has no such pin; it has %q", e.Model, e.Pins)
	}
	return nil
}

func makeManifest(ctx context.Context, c *command) error {
	var cfg source.Config
	c.flags.StringVar(&cfg.Endpoint, "endpoint", "", "S3 server's `URL`; AWS_ENDPOINT_URL otherwise")
	c.flags.StringVar(&cfg.Region, "region", "", "S3 `region`; AWS_REGION otherwise")
	file := c.flags.String("o", "", "write the manifest to this `file` instead of standard output; a "+manifest.Name+" in the directory itself is no part of the model")
	words, err := c.parse(`[-o FILE] REPOSITORY[/REVISION]

Reads every file of a directory or bucket prefix and writes their manifest. Its digest,
which is model.expectedDigest, goes to standard error. Put the manifest beside the files
as `+manifest.Name+`, so that each file can be proven by itself.`, 1, 1)
	if err != nil {
		return err
	}
	repository := words[0]
	if info, err := os.Stat(repository); err == nil && info.IsDir() {
		if repository, err = filepath.Abs(repository); err != nil {
			return err
		}
	}
	from, err := source.New(repository, "", cfg, os.LookupEnv)
	if err != nil {
		return err
	}
	m, err := modelcache.Digest(ctx, from)
	if err != nil {
		return explain(err)
	}
	if *file != "" {
		err = os.WriteFile(*file, m.Text(), 0o644)
	} else {
		_, err = c.out.Write(m.Text())
	}
	fmt.Fprintf(c.err, "expectedDigest: %s\n", m.Digest())
	return err
}
