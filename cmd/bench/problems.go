package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

// problem is one item of a dataset.
type problem struct{ question, reference, worked string }

func (f *evalFlags) problems(path string) ([]problem, error) {
	lines, err := readLines(path)
	if err != nil {
		return nil, err
	}
	var all []problem
	for n, line := range lines {
		var fields map[string]any
		if err := json.Unmarshal(line, &fields); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, n+1, err)
		}
		find := func(name string, usual ...string) string {
			if name != "" {
				usual = []string{name}
			}
			for _, name := range usual {
				if v, there := fields[name]; there && v != nil {
					return strings.TrimSpace(fmt.Sprint(v))
				}
			}
			return ""
		}
		p := problem{question: find(f.question, "question", "problem"), reference: find(f.answer, "answer", "solution")}
		if p.question == "" || p.reference == "" {
			return nil, fmt.Errorf("%s, line %d: no problem or no reference; name their fields with -question-field and -answer-field", path, n+1)
		}
		if p.worked = find("", "solution"); p.worked == "" || f.answer == "solution" {
			p.worked = p.reference
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s holds no problem", path)
	}
	return all, nil
}

// asked returns the problems to ask and the examples before each.
func (f *evalFlags) asked() (items, examples []problem, err error) {
	if items, err = f.problems(f.dataset); err != nil {
		return nil, nil, err
	}
	if f.template == "" {
		f.template = mathTemplate
		if strings.Contains(items[0].reference, "####") {
			f.template = gsm8kTemplate
		}
	}
	if f.shots > 0 {
		if f.shotsFile != "" {
			if examples, err = f.problems(f.shotsFile); err != nil {
				return nil, nil, err
			}
		} else if f.shots < len(items) {
			items, examples = items[:len(items)-f.shots], items[len(items)-f.shots:]
		}
		if len(examples) < f.shots {
			return nil, nil, fmt.Errorf("there are %d examples for -shots %d", len(examples), f.shots)
		}
		examples = examples[:f.shots]
	}
	if f.limit > 0 {
		items = items[:min(f.limit, len(items))]
	}
	return items, examples, nil
}
