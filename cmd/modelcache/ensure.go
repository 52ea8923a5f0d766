package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/warmpath/warmpath/internal/modelcache"
	"github.com/warmpath/warmpath/internal/modelcache/store"
)

// ensure makes one model present.
func ensure(ctx context.Context, c *command) error {
	file := c.flags.String("config", "", "YAML `file` with the model and the cache; required")
	pin := c.flags.String("pin", hostPin(), "`name` of the pin that keeps the model until modelcache unpin; the host's name is the pod's in Kubernetes")
	noPin := c.flags.Bool("no-pin", false, "do not pin: the model may be evicted as soon as another needs the room")
	warm := c.flags.Bool("warm", false, "read the weights into the page cache, just before an engine starts")
	link := c.flags.String("link", "", "make this `path` a symbolic link to the model's directory")
	if _, err := c.parse(`-config model.yaml

Makes the model present, verified and pinned, and prints its directory. What is in the
cache already is used without asking the source. Run it as an init container.`, 0, 0); err != nil {
		return err
	}
	cfg, err := load(*file)
	if err != nil {
		return err
	}
	m, err := cfg.Resolve(os.LookupEnv)
	if err != nil {
		return err
	}
	if *noPin {
		*pin = ""
	}
	s, err := store.Open(cfg.Store())
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	cache := modelcache.New(s, cfg.Fetch, c.log)
	progress := &modelcache.Progress{}
	stop := show(ctx, c.err, progress)
	result, err := cache.Ensure(ctx, m, *pin, progress)
	stop()
	if err != nil {
		return explain(err)
	}
	if result.Hit {
		c.log.Info("already here, the source was not asked", "digest", m.Digest)
	}
	if *warm {
		if err := s.Warm(ctx, m.Digest); err != nil {
			return err
		}
	}
	if *link != "" {
		if err := replaceLink(result.Path, *link); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(c.out, result.Path)
	return err
}

func load(file string) (modelcache.Config, error) {
	if file == "" {
		return modelcache.Config{}, errors.New("-config is not set: name a YAML file with model and cache (modelcache -h shows one)")
	}
	return modelcache.Load(file)
}

// explain adds the next step to errors that have one.
func explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or MODELCACHE_TOKEN over HTTP; the cache's directory must be writable)", err)
	case errors.Is(err, modelcache.ErrDigest):
		return fmt.Errorf("%w: nothing was published; check the source, or model.expectedDigest", err)
	}
	return err
}

// hostPin is the host's name where it is one for a pin.
func hostPin() string {
	if name, err := os.Hostname(); err == nil && store.CheckName(name) == nil {
		return name
	}
	return "ensure"
}

// replaceLink changes a link in one step, so that there is always one. The name that it
// has on the way is nobody else's: in containers every process has the same number.
func replaceLink(target, link string) error {
	if info, err := os.Lstat(link); err == nil && info.Mode()&fs.ModeSymlink == 0 {
		return fmt.Errorf("-link %s is there and is not a symbolic link", link)
	}
	temporary := filepath.Join(filepath.Dir(link), "."+filepath.Base(link)+"."+rand.Text())
	if err := os.Symlink(target, temporary); err != nil {
		return fmt.Errorf("-link: %w", err)
	}
	if err := os.Rename(temporary, link); err != nil {
		_ = os.Remove(temporary)
		return fmt.Errorf("-link: %w", err)
	}
	return nil
}

// show draws progress on a terminal, or writes a line now and then elsewhere. The
// returned function ends it.
func show(ctx context.Context, w io.Writer, progress *modelcache.Progress) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	f, isFile := w.(*os.File)
	terminal := isFile && term.IsTerminal(int(f.Fd()))
	go func() {
		defer close(done)
		if terminal {
			drawBar(ctx, w, progress)
		} else {
			writeLines(ctx, w, progress)
		}
	}()
	return func() { cancel(); <-done }
}

func drawBar(ctx context.Context, w io.Writer, progress *modelcache.Progress) {
	var bar *progressbar.ProgressBar
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		present, total := progress.Read()
		if bar == nil && total > 0 {
			bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(w), progressbar.OptionShowBytes(true),
				progressbar.OptionSetDescription("model"), progressbar.OptionUseIECUnits(true),
				progressbar.OptionFullWidth(), progressbar.OptionClearOnFinish())
		}
		if bar != nil {
			_ = bar.Set64(min(present, total))
		}
		select {
		case <-ctx.Done():
			if bar != nil {
				_ = bar.Exit()
			}
			return
		case <-tick.C:
		}
	}
}

func writeLines(ctx context.Context, w io.Writer, progress *modelcache.Progress) {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if present, total := progress.Read(); total > 0 {
				fmt.Fprintf(w, "modelcache: %s of %s\n", size(present), size(total))
			}
		}
	}
}

// size writes bytes for people.
func size(n int64) string {
	const unit = 1024
	v, i := float64(n), 0
	for v >= unit && i < 4 {
		v, i = v/unit, i+1
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") + " " + []string{"B", "KiB", "MiB", "GiB", "TiB"}[i]
}
