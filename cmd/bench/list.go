package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/lab"
)

// list is a flag of one or more values, separated by commas, each of them once.
type list[T comparable] struct {
	values []T
	parse  func(string) (T, error)
}

// String is for flag.Value.
func (l *list[T]) String() string {
	var texts []string
	for _, v := range l.values {
		texts = append(texts, fmt.Sprint(v))
	}
	return strings.Join(texts, ",")
}

// Set is for flag.Value.
func (l *list[T]) Set(text string) error {
	l.values = nil
	for item := range strings.SplitSeq(text, ",") {
		v, err := l.parse(strings.TrimSpace(item))
		if err != nil {
			return err
		}
		if slices.Contains(l.values, v) {
			return fmt.Errorf("%v is there twice", v)
		}
		l.values = append(l.values, v)
	}
	return nil
}

func factors(values ...float64) *list[float64] {
	return &list[float64]{values, func(text string) (float64, error) {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || !(f > 0 && f < 1e6) {
			return 0, fmt.Errorf("%q is no number above 0", text)
		}
		return f, nil
	}}
}

func counts(values ...int) *list[int] {
	return &list[int]{values, func(text string) (int, error) {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return 0, fmt.Errorf("%q is no whole number above 0", text)
		}
		return n, nil
	}}
}

func lags(values ...time.Duration) *list[lag] {
	l := &list[lag]{parse: parseLag}
	for _, v := range values {
		l.values = append(l.values, lag(v))
	}
	return l
}

// policyNames is a list of policies that can be simulated.
func policyNames(values ...string) *list[string] {
	return &list[string]{values, func(text string) (string, error) {
		if !slices.Contains(lab.Policies(), text) {
			return "", fmt.Errorf("no policy %q: there are %s", text, strings.Join(lab.Policies(), ", "))
		}
		return text, nil
	}}
}

// lag is how late gateways hear of each other, or never.
type lag time.Duration

// String is the lag as flags and results write it.
func (l lag) String() string {
	if time.Duration(l) == lab.Never {
		return "never"
	}
	return time.Duration(l).String()
}

// MarshalText is for JSON.
func (l lag) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText is for JSON.
func (l *lag) UnmarshalText(text []byte) (err error) {
	*l, err = parseLag(string(text))
	return err
}

func parseLag(text string) (lag, error) {
	if text == "never" {
		return lag(lab.Never), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is no time such as 20ms, and not \"never\"", text)
	}
	if d < 0 {
		return 0, errors.New(`a lag is 0 or more; where nothing is shared, write "never"`)
	}
	return lag(d), nil
}
