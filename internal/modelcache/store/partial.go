package store

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"github.com/warmpath/warmpath/internal/modelcache/manifest"
)

// ChunkBytes is the unit in which a download is remembered: what a crash can cost
// for each connection.
const ChunkBytes = 1 << 20

// Partial is a file on its way. Whoever has it holds the lock of its name. Write
// may be called from several goroutines for different chunks.
//
// Its journal has a record for each chunk that is on the disk, with the chunk's
// hash, so that after a crash of the process or of the machine what counts as
// present is what can be read back. The hash guards against the disk, not against
// people: the file's SHA-256 does that at the end.
type Partial struct {
	s    *Store
	dir  string
	size int64
	data *os.File

	mu      sync.Mutex // guards what follows
	journal *os.File
	have    []bool
	resting bool
}

// A journal is journalMagic, the file's size, then records of a chunk's number and
// the xxhash of its bytes and number, all little-endian.
const (
	journalMagic  = "mcj1"
	journalHeader = 12
	recordBytes   = 12
)

// OpenPartial opens the download that Reserve made room for, and finds out which
// chunks are there. The caller has the lock of its name.
func (s *Store) OpenPartial(p Part) (*Partial, error) {
	part, published, err := s.openPartial(p)
	if err == nil && published && !part.complete() {
		// Nobody writes to what is a blob already: a new file, then.
		if err := part.Discard(); err != nil {
			return nil, err
		}
		part, _, err = s.openPartial(p)
	}
	return part, err
}

func (s *Store) openPartial(p Part) (part *Partial, published bool, err error) {
	part = &Partial{s: s, dir: partials + "/" + p.Name, size: p.Size, have: make([]bool, chunks(p.Size))}
	if err := s.takeSpace(p); err != nil {
		return nil, false, err
	}
	if part.data, err = s.openData(part.dir + "/data"); err != nil {
		return nil, false, err
	}
	if part.journal, err = s.openPlain(part.dir+"/journal", os.O_RDWR|os.O_CREATE); err != nil {
		_ = part.data.Close()
		return nil, false, err
	}
	info, err := part.data.Stat()
	if err == nil {
		published = links(info) > 1
		err = part.load()
	}
	if err != nil {
		part.Close()
		return nil, false, err
	}
	return part, published, nil
}

func (p *Partial) complete() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !slices.Contains(p.have, false)
}

// openPlain opens a file of the cache's own, which is never a link.
func (s *Store) openPlain(name string, flag int) (*os.File, error) {
	f, err := s.root.OpenFile(name, flag|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", name)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// openData opens a download's bytes. They are read-only from when they were proven:
// what is a blob by another name stays so, what a pull left before it got one is
// written to again.
func (s *Store) openData(name string) (*os.File, error) {
	info, err := s.root.Lstat(name)
	if err == nil && info.Mode().Perm()&0o200 == 0 {
		if links(info) > 1 {
			return s.openPlain(name, os.O_RDONLY)
		}
		if err := s.root.Chmod(name, 0o644); err != nil {
			return nil, err
		}
	}
	return s.openPlain(name, os.O_RDWR)
}

// takeSpace makes a partial file of its full size, so that the disk cannot become
// full on the way. One that is there already keeps its bytes, and is not touched: its
// pull may be about to publish it.
func (s *Store) takeSpace(p Part) error {
	dir := partials + "/" + p.Name
	if err := s.root.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	name := dir + "/data"
	info, err := s.root.Lstat(name)
	if err == nil && info.Mode().IsRegular() && info.Size() == p.Size {
		return nil
	}
	if err == nil && info.Mode().Perm()&0o200 == 0 { // it was proven once, and cut since
		if err := s.root.Remove(name); err != nil {
			return err
		}
	}
	f, err := s.openPlain(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	err = errors.Join(allocate(f, p.Size), f.Close())
	if err != nil {
		_ = s.root.RemoveAll(dir)
	}
	return err
}

func allocate(f *os.File, size int64) error {
	if size > 0 {
		if err := takeBlocks(f, size); err != nil {
			return fmt.Errorf("reserve %d bytes: %w", size, err)
		}
	}
	return f.Truncate(size)
}

func chunks(size int64) int { return int((size + ChunkBytes - 1) / ChunkBytes) }

// load reads the journal and believes of it what the data confirm. A journal of
// something else is begun anew.
func (p *Partial) load() error {
	var head [journalHeader]byte
	if _, err := io.ReadFull(p.journal, head[:]); err != nil || string(head[:4]) != journalMagic ||
		binary.LittleEndian.Uint64(head[4:]) != uint64(p.size) {
		return p.Reset()
	}
	buffer := make([]byte, ChunkBytes)
	records := bufio.NewReader(p.journal)
	length := int64(journalHeader)
	for {
		var record [recordBytes]byte
		if _, err := io.ReadFull(records, record[:]); err != nil {
			break // the end, or a record that a crash cut
		}
		length += recordBytes
		i := binary.LittleEndian.Uint32(record[:])
		if int64(i) >= int64(len(p.have)) {
			continue
		}
		chunk := buffer[:p.chunkLen(int(i))]
		if _, err := p.data.ReadAt(chunk, int64(i)*ChunkBytes); err == nil && chunkSum(int(i), chunk) == binary.LittleEndian.Uint64(record[4:]) {
			p.have[i] = true
		}
	}
	if err := p.journal.Truncate(length); err != nil {
		return err
	}
	_, err := p.journal.Seek(length, io.SeekStart)
	return err
}

func (p *Partial) chunkLen(i int) int {
	return int(min(ChunkBytes, p.size-int64(i)*ChunkBytes))
}

func chunkSum(i int, chunk []byte) uint64 {
	var number [4]byte
	binary.LittleEndian.PutUint32(number[:], uint32(i))
	var d xxhash.Digest
	d.Reset()
	_, _ = d.Write(number[:])
	_, _ = d.Write(chunk)
	return d.Sum64()
}

// Reset forgets every chunk; the space stays taken.
func (p *Partial) Reset() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.have)
	if p.resting {
		return p.s.root.Remove(p.dir + "/journal")
	}
	if err := p.journal.Truncate(0); err != nil {
		return err
	}
	head := binary.LittleEndian.AppendUint64([]byte(journalMagic), uint64(p.size))
	if _, err := p.journal.WriteAt(head, 0); err != nil {
		return err
	}
	_, err := p.journal.Seek(journalHeader, io.SeekStart)
	return err
}

// Chunks returns the number of chunks. All but the last have ChunkBytes.
func (p *Partial) Chunks() int { return len(p.have) }

// Size returns the whole file's bytes.
func (p *Partial) Size() int64 { return p.size }

// Have tells that a chunk is on the disk.
func (p *Partial) Have(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.have[i]
}

// Write stores a whole chunk.
func (p *Partial) Write(i int, chunk []byte) error {
	if len(chunk) != p.chunkLen(i) {
		return fmt.Errorf("BUG: chunk %d of %s has %d bytes", i, p.dir, len(chunk))
	}
	if _, err := p.data.WriteAt(chunk, int64(i)*ChunkBytes); err != nil {
		return err
	}
	record := binary.LittleEndian.AppendUint32(nil, uint32(i))
	record = binary.LittleEndian.AppendUint64(record, chunkSum(i, chunk))
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.journal.Write(record); err != nil {
		return err
	}
	p.have[i] = true
	return nil
}

// Read reads a chunk that is there.
func (p *Partial) Read(i int, buffer []byte) ([]byte, error) {
	chunk := buffer[:p.chunkLen(i)]
	_, err := p.data.ReadAt(chunk, int64(i)*ChunkBytes)
	return chunk, err
}

// Rest closes the files of a complete download, so that a model of thousands of files
// can wait for the last of them. Offer, Reset, Close and Discard still work.
func (p *Partial) Rest() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resting = true
	return errors.Join(p.data.Close(), p.journal.Close())
}

// Close keeps what is there for the next one, unless nobody may take over.
func (p *Partial) Close() {
	_ = p.data.Close()
	_ = p.journal.Close()
	if !p.s.shared {
		_ = p.s.root.RemoveAll(p.dir)
	}
}

// Discard removes the download.
func (p *Partial) Discard() error {
	_ = p.data.Close()
	_ = p.journal.Close()
	return p.s.root.RemoveAll(p.dir)
}

// Promote makes a complete download, whose digest the caller has computed, a blob.
// The content is on the disk when it returns; the name is when Publish does. It closes
// the partial.
func (p *Partial) Promote(ctx context.Context, file manifest.Digest) error {
	if err := p.seal(); err != nil {
		p.Close()
		return err
	}
	_ = p.data.Close()
	_ = p.journal.Close()
	return p.s.locked(ctx, func() error {
		if err := p.s.root.Rename(p.dir+"/data", blobFile(file)); err != nil {
			return err
		}
		return p.s.root.RemoveAll(p.dir)
	})
}

// Offer gives a complete download the name of a blob and keeps it as a download too:
// if the process ends before the blob belongs to a model, nothing is lost.
func (p *Partial) Offer(ctx context.Context, file manifest.Digest) error {
	if err := p.seal(); err != nil {
		return err
	}
	return p.s.locked(ctx, func() error {
		if p.s.HasBlob(file, p.size) {
			return nil
		}
		if err := p.s.root.RemoveAll(blobFile(file)); err != nil {
			return err
		}
		return p.s.root.Link(p.dir+"/data", blobFile(file))
	})
}

// seal makes a file what a blob is, and durable.
func (p *Partial) seal() error {
	name := p.dir + "/data"
	if err := p.s.root.Chmod(name, 0o444); err != nil {
		return err
	}
	if err := p.s.root.Chtimes(name, stamp, stamp); err != nil {
		return err
	}
	f, err := p.s.openRead(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
