package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/warmpath/warmpath/internal/bench"
)

// journal keeps the items of a run on disk, so that the next can go on.
type journal struct {
	file *os.File
	err  error
}

// openJournal opens the i-th server's journal and reads the items that an
// interrupted run with the same settings left there.
func (f *evalFlags) openJournal(i int, endpoint string, items, examples []problem, graded []*bench.Graded) (*journal, error) {
	if f.save == "" {
		return &journal{}, nil
	}
	path := f.save + ".items.jsonl"
	if i > 0 {
		path = f.save + ".compare.items.jsonl"
	}
	header, err := json.Marshal(map[string]any{"endpoint": endpoint, "first": string(f.call(items[0], examples).Body), "last": string(f.call(items[len(items)-1], examples).Body), "marker": f.marker})
	if err != nil {
		return nil, err
	}
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	lines := bufio.NewScanner(bytes.NewReader(old))
	lines.Buffer(nil, 64<<20)
	keep := []byte(string(header) + "\n")
	if lines.Scan() && !f.again {
		if !bytes.Equal(lines.Bytes(), header) {
			return nil, fmt.Errorf("%s is of a run with other settings: give another -o, or -restart", path)
		}
		for lines.Scan() {
			var g bench.Graded
			if json.Unmarshal(lines.Bytes(), &g) != nil || g.Index < 0 || g.Index >= len(graded) {
				continue // a line that was cut off
			}
			graded[g.Index] = &g
			keep = append(append(keep, lines.Bytes()...), '\n')
		}
	}
	if err := os.WriteFile(path, keep, 0o644); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0o644)
	return &journal{file: file}, err
}

func (j *journal) add(g *bench.Graded) {
	if j.file == nil || j.err != nil {
		return
	}
	line, err := json.Marshal(g)
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	j.err = err
}

func (j *journal) close() {
	if j.file != nil {
		_ = j.file.Close()
	}
}
