package main

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/bench"
	"github.com/warmpath/warmpath/internal/lab"
)

// source hands out sessions one after another; nil is the end.
type source func() *bench.Turn

// source returns the sessions for the n-th URL: the same for all, or with other
// tokens.
func (f *loadFlags) source(n int) (source, error) {
	if f.dataset != "" {
		return f.fromDataset()
	}
	p := &prompts{model: f.model, vocabulary: f.vocabulary, chat: f.as == "chat", mayEnd: !f.ignoreEOS, seen: &beginnings{}}
	p.salt = uint32(f.seed-1) << 8
	if f.distinct {
		p.salt += uint32(n)
	}
	rnd := rand.New(rand.NewPCG(f.seed, 1))
	if f.workload == "" && f.trace == "" {
		s := synthetic{f: f, rnd: rnd}
		return func() *bench.Turn { return p.session(s.next()) }, nil
	}
	works, err := choose(f.workload, f.trace, 1, f.span)
	if err != nil {
		return nil, err
	}
	if len(works) != 1 {
		return nil, fmt.Errorf("-workload %s: give one", f.workload)
	}
	list := works[0].Make(rnd)
	return func() *bench.Turn {
		if len(list) == 0 {
			return nil
		}
		r := list[0]
		list = list[1:]
		r.At = stretch(r.At, f.timeScale)
		return p.session(r)
	}, nil
}

// synthetic makes sessions of the sizes that the flags say.
type synthetic struct {
	f    *loadFlags
	rnd  *rand.Rand
	last uint32 // run
	n    uint64 // sessions
}

func (s *synthetic) next() *lab.Request {
	f := s.f
	var history []lab.Run
	if f.shared > 0 {
		// Drawn, not in turn: else a server that deals in turn, too, would send each group
		// to the same replica by accident.
		history = append(history, lab.Run{ID: uint32(s.rnd.IntN(f.groups)), Tokens: f.shared})
	}
	s.n++
	var first, last *lab.Request
	for range f.turns.draw(s.rnd) {
		history = append(slices.Clip(history), s.run(f.input.draw(s.rnd)))
		r := &lab.Request{Runs: history, Answer: s.run(f.output.draw(s.rnd)), Session: s.n, Think: time.Duration(s.rnd.ExpFloat64() * float64(f.think))}
		if last == nil {
			first = r
		} else {
			last.Next = r
		}
		last = r
		said := r.Answer
		said.Generated = true
		history = append(slices.Clip(history), said)
	}
	return first
}

func (s *synthetic) run(tokens int) lab.Run {
	s.last++
	return lab.Run{ID: uint32(s.f.groups) + s.last, Tokens: tokens}
}

// fromDataset reads prompts from a file.
func (f *loadFlags) fromDataset() (source, error) {
	lines, err := readLines(f.dataset)
	if err != nil {
		return nil, err
	}
	var turns []*bench.Turn
	for n, line := range lines {
		messages, err := promptOf(line, f.field)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", f.dataset, n+1, err)
		}
		b := body{Model: f.model, Messages: messages, MaxTokens: f.output.high, Stream: true, IgnoreEOS: f.ignoreEOS && f.ignoreEOSOn}
		b.Options.Usage = true
		data, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		turns = append(turns, &bench.Turn{Call: func([]bench.Answer) bench.Call {
			return bench.Call{Path: "/v1/chat/completions", Body: data}
		}})
	}
	if len(turns) == 0 {
		return nil, fmt.Errorf("%s holds no prompt", f.dataset)
	}
	left := f.requests
	if left == 0 && f.duration == 0 {
		left = len(turns)
	}
	n := 0
	return func() *bench.Turn { // from the beginning again, if more is asked for
		if left > 0 && n == left {
			return nil
		}
		t := *turns[n%len(turns)]
		n++
		return &t
	}, nil
}

// promptOf finds the prompt of a line.
func promptOf(line []byte, field string) ([]message, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		return nil, err
	}
	if field == "" {
		var messages []message
		if json.Unmarshal(fields["messages"], &messages) == nil && len(messages) > 0 {
			return messages, nil
		}
	}
	names := []string{field}
	if field == "" {
		names = []string{"prompt", "question", "problem", "text"}
	}
	for _, name := range names {
		var text string
		if json.Unmarshal(fields[name], &text) == nil && text != "" {
			return []message{{"user", text}}, nil
		}
	}
	return nil, fmt.Errorf("no messages, and no text in the field %s; name it with -field", strings.Join(names, ", "))
}

// readLines returns the lines of a file, which may be compressed by gzip.
func readLines(path string) ([][]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	buffered := bufio.NewReader(file)
	var reader io.Reader = buffered
	if magic, err := buffered.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		if reader, err = gzip.NewReader(buffered); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	var lines [][]byte
	scanner := bufio.NewScanner(reader)
	scanner.Buffer(nil, 64<<20)
	for scanner.Scan() {
		if line := strings.TrimSpace(scanner.Text()); line != "" {
			lines = append(lines, []byte(line))
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return lines, nil
}
