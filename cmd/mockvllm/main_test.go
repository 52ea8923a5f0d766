package main

import (
	"context"
	"errors"
	"flag"
	"reflect"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/internal/mockvllm"
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
		{"-nope"}, {"extra"}, {"-prefill-rate", "0"}, {"-preset", "9b"}, {"-time-scale", "0"}, {"-faults", `{"statsu":1}`}, {"-listen", "nowhere:-1"},
	} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("%v: accepted", args)
		}
	}
	if err := run(t.Context(), []string{"-h"}); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: %v", err)
	}
}

func TestFlagsOverrideThePreset(t *testing.T) {
	for name, preset := range mockvllm.Presets() {
		preset.KeepRequests = 0
		o, err := parse([]string{"-preset", name})
		if err != nil || !reflect.DeepEqual(o.engine, preset) {
			t.Errorf("-preset %s: %v\n%+v, want\n%+v", name, err, o.engine, preset)
		}
		for _, args := range [][]string{
			{"-blocks", "77", "-prefill-rate", "1000", "-preset", name}, {"-preset", name, "-prefill-rate", "1000", "-blocks", "77"},
		} {
			want := preset
			want.Blocks, want.PrefillPerToken = 77, time.Millisecond
			if o, err := parse(args); err != nil || !reflect.DeepEqual(o.engine, want) {
				t.Errorf("%v: %v\n%+v, want\n%+v", args, err, o.engine, want)
			}
		}
	}
	want := mockvllm.DefaultConfig()
	want.KeepRequests = 0
	if o, err := parse(nil); err != nil || !reflect.DeepEqual(o.engine, want) {
		t.Errorf("no flags: %v\n%+v, want\n%+v", err, o.engine, want)
	}
}
