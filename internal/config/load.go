package config

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Load makes the settings from the command's arguments and the environment. It
// writes usage to out for -h, with [flag.ErrHelp]; for -h WORD, that of the flags with
// the word in their name.
func Load(args []string, env func(string) (string, bool), out io.Writer) (*Config, error) {
	var path string
	first := Default().Flags(&path) // only to find -config
	first.SetOutput(io.Discard)
	if err := first.Parse(args); errors.Is(err, flag.ErrHelp) {
		first.SetOutput(out)
		if word, ok := helpWord(args); ok {
			return nil, cmp.Or(helpOn(out, first, word), err)
		}
		first.Usage()
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%w (-h lists the flags)", err)
	}
	if rest := first.Args(); len(rest) > 0 {
		return nil, fmt.Errorf("unexpected argument %q: settings are flags, -h lists them", rest[0])
	}
	if path == "" {
		path, _ = env(Env("config"))
	}

	c := Default()
	c.File = path
	if path != "" {
		if err := readFile(path, c.Flags(new(string))); err != nil {
			return nil, err
		}
	}
	if err := readEnv(env, c.Flags(new(string))); err != nil {
		return nil, err
	}
	last := c.Flags(new(string))
	last.SetOutput(io.Discard)
	if err := last.Parse(args); err != nil {
		return nil, err
	}
	if c.HashKey != "" || c.Version {
		return c, nil
	}
	return c, c.Validate()
}

// readEnv sets flags from the environment. An empty variable is like none: that is
// how compose files and charts pass on what was not given.
func readEnv(env func(string) (string, bool), flags *flag.FlagSet) (err error) {
	flags.VisitAll(func(f *flag.Flag) {
		if text, _ := env(Env(f.Name)); text != "" && f.Name != "config" {
			if e := set(f, text); e != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", Env(f.Name), e))
			}
		}
	})
	return err
}

// set sets a flag; its error says what the flag takes.
func set(f *flag.Flag, text string) error {
	if f.Value.Set(text) == nil {
		return nil
	}
	want := "valid"
	if v, ok := f.Value.(flag.Getter); ok {
		switch v.Get().(type) {
		case bool:
			want = "true or false"
		case int, int64:
			want = "a whole number"
		case float64:
			want = "a number, like 0.2"
		case time.Duration:
			want = "a duration, like 500ms or 1m30s"
		case *slog.Level:
			want = "debug, info, warn or error"
		}
	}
	return fmt.Errorf("%q is not %s", text, want)
}

// readFile sets flags from a YAML file. A value is read as if it were the flag's,
// so the three sources take the same and refuse the same.
func readFile(path string, flags *flag.FlagSet) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	f, err := parser.ParseBytes(text, 0)
	if err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n") // an excerpt would follow, with what may be secret
		return fmt.Errorf("config %s: %s", path, first)
	}
	r := reader{path: path, flags: map[string]*flag.Flag{}, sections: map[string]bool{"": true}}
	flags.VisitAll(func(f *flag.Flag) {
		if key := Key(f.Name); key != "" {
			r.flags[key] = f
			if section, _, ok := strings.Cut(key, "."); ok {
				r.sections[section] = true
			}
		}
	})
	for i, doc := range f.Docs {
		if i > 0 && doc.Body != nil {
			return r.errorf(doc.Body, "there is a second document: put all settings into one")
		}
		if err := r.value("", doc.Body); err != nil {
			return err
		}
	}
	return nil
}

// reader sets flags by their keys.
type reader struct {
	path     string
	flags    map[string]*flag.Flag
	sections map[string]bool
}

func (r *reader) errorf(at ast.Node, format string, args ...any) error {
	return fmt.Errorf("config %s:%d: %w", r.path, at.GetToken().Position.Line, fmt.Errorf(format, args...))
}

// value reads what stands at a key. Null, or nothing, leaves the default.
func (r *reader) value(key string, node ast.Node) error {
	switch node.(type) {
	case nil, *ast.NullNode, *ast.CommentGroupNode:
		return nil
	}
	if r.sections[key] {
		return r.section(key, node)
	}
	f := r.flags[key]
	if _, ok := f.Value.(*list); ok {
		if n, ok := node.(*ast.SequenceNode); ok {
			for _, item := range n.Values {
				if err := r.scalar(key, f, item); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return r.scalar(key, f, node)
}

// section reads the members of a section, or of the whole file.
func (r *reader) section(name string, node ast.Node) error {
	n, ok := node.(ast.MapNode)
	if !ok && name == "" {
		return r.errorf(node, "the file must hold lines of the form key: value")
	} else if !ok {
		return r.errorf(node, "%s is a section: put its keys below it, indented", name)
	}
	for m := n.MapRange(); m.Next(); {
		key := m.Key().GetToken().Value
		if name != "" {
			key = name + "." + key
		}
		if r.flags[key] == nil && (name != "" || !r.sections[key]) {
			return r.errorf(m.Key(), "unknown key %s: docs/configuration.md lists the keys", key)
		}
		if err := r.value(key, m.Value()); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) scalar(key string, f *flag.Flag, node ast.Node) error {
	text := ""
	switch n := node.(type) {
	case *ast.StringNode:
		text = n.Value
	case *ast.LiteralNode:
		text = n.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		text = n.GetToken().Value
	default:
		return r.errorf(node, "%s takes a plain value, not a list, a section, an anchor or a tag", key)
	}
	if err := set(f, text); err != nil {
		return r.errorf(node, "%s: %w", key, err)
	}
	return nil
}
