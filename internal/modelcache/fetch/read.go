package fetch

import (
	"context"
	"fmt"
	"io"

	"github.com/warmpath/warmpath/internal/modelcache/source"
)

// ReadAll reads a small file. One that is longer than limit bytes is an error.
func (f *Fetcher) ReadAll(ctx context.Context, from source.Source, path string, limit int64) (text []byte, err error) {
	file := File{Object: source.Object{Path: path}, From: from}
	err = f.retry(ctx, func() (bool, error) {
		body, stop, err := f.open(ctx, file, 0, -1)
		if err != nil {
			return false, err
		}
		defer stop()
		text, err = io.ReadAll(io.LimitReader(body, limit+1))
		return false, err
	})
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("longer than %d bytes", limit)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return text, nil
}

// Stream writes a file's bytes to a sink in their order, over as many requests as it
// takes.
func (f *Fetcher) Stream(ctx context.Context, from source.Source, o source.Object, sink io.Writer) error {
	file := File{Object: o, From: from}
	buffer := f.buffers.Get().(*[]byte)
	defer f.buffers.Put(buffer)
	var written int64
	err := f.retry(ctx, func() (bool, error) {
		body, stop, err := f.open(ctx, file, written, -1)
		if err != nil {
			return false, err
		}
		defer stop()
		if _, err := io.CopyN(io.Discard, body, written-body.Offset); err != nil { // Range was ignored
			return false, err
		}
		n, err := io.CopyBuffer(sink, io.LimitReader(body, o.Size-written+1), *buffer)
		written += n
		switch {
		case written > o.Size:
			return false, fmt.Errorf("%w: it has more than the %d bytes that were listed", source.ErrChanged, o.Size)
		case written == o.Size:
			return true, nil
		case err == nil:
			err = fmt.Errorf("%d bytes were listed and %d came: %w", o.Size, written, io.ErrUnexpectedEOF)
		}
		return n > 0, err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", o.Path, err)
	}
	return nil
}

// List returns a source's files. More than most of them are an error, and the rest is
// not asked for.
func (f *Fetcher) List(ctx context.Context, from source.Source, most int) (objects []source.Object, err error) {
	tooMany := false
	err = f.retry(ctx, func() (bool, error) {
		w := f.watch(ctx)
		defer w.end()
		objects = nil
		err := from.List(w.ctx, func(o source.Object) bool {
			w.alive()
			tooMany = len(objects) == most
			if !tooMany {
				objects = append(objects, o)
			}
			return !tooMany
		})
		if err != nil {
			err = w.explain(err)
		}
		return false, err
	})
	if err == nil && tooMany {
		err = fmt.Errorf("the source has more than %d files there: check model.repository and model.revision", most)
	}
	return objects, err
}
