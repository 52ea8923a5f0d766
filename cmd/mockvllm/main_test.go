package main

import (
	"context"
	"errors"
	"flag"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRunStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, []string{"-listen", "127.0.0.1:0", "-adapters", "a,b", "-faults", `{"next":1}`}); err != nil {
		t.Error(err)
	}
}

func TestBadFlagsAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{"-nope"}, {"extra"}, {"-prefill-rate", "0"}, {"-faults", `{"statsu":1}`}, {"-listen", "nowhere:-1"},
	} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("%v: accepted", args)
		}
	}
	if err := run(t.Context(), []string{"-h"}); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: %v", err)
	}
}
