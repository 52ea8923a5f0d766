package trace

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/trace"
)

// defaultShare is how many of the traces that begin here are kept where the environment
// does not say.
const defaultShare = 0.1

// sampler says which requests have spans, by the rules of the SDK's samplers: those
// answer only for a context, and a request that is not sampled needs none.
type sampler struct {
	heeds bool   // what a client decided
	below uint64 // keeps the traces whose id has less in the last 63 bits of it
}

// samplerOf returns the sampler that OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG
// name. Without a name it is parentbased_traceidratio, and keeps defaultShare; by that
// name it keeps all unless the argument says less, as the specification has it.
func samplerOf(name, argument string) (sampler, error) {
	name = strings.ToLower(strings.TrimSpace(name))
	kind, heeds := strings.CutPrefix(name, "parentbased_")
	share := 1.0
	switch {
	case name == "":
		heeds, kind, share = true, "traceidratio", defaultShare
	case kind == "always_off":
		share = 0
	case kind != "always_on" && kind != "traceidratio":
		return sampler{}, fmt.Errorf("OTEL_TRACES_SAMPLER: %q is not always_on, always_off, traceidratio or one of these after parentbased_", name)
	}
	if argument = strings.TrimSpace(argument); argument != "" && kind == "traceidratio" {
		var err error
		if share, err = strconv.ParseFloat(argument, 64); err != nil || !(share >= 0 && share <= 1) {
			return sampler{}, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG: %q is not a number from 0 to 1", argument)
		}
	}
	return sampler{heeds: heeds, below: uint64(share * (1 << 63))}, nil
}

// keeps reports whether a request has spans. Its client's span is from; if that has no
// id, the request begins the trace.
func (s sampler) keeps(from trace.SpanContext) bool {
	if s.heeds && from.HasSpanID() {
		return from.IsSampled()
	}
	id := from.TraceID()
	return binary.BigEndian.Uint64(id[8:])>>1 < s.below
}
