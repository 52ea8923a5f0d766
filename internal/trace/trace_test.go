package trace

import (
	"net/http"
	"testing"
)

func TestTraceIDOfAHeader(t *testing.T) {
	const id = "0af7651916cd43dd8448eb211c80319c"
	for header, want := range map[string]string{
		"":                                       "",
		"00-" + id + "-b7ad6b7169203331-01":      id,
		"00-" + id + "-b7ad6b7169203331-00":      id,
		"cc-" + id + "-b7ad6b7169203331-01-more": id,
		"00-" + id + "-b7ad6b7169203331-0":       "",
		"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01":   "",
		"00-0af7651916cd43dd8448eb211c80319\n-b7ad6b7169203331-01":  "",
		"00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01_0": "",
	} {
		h := http.Header{}
		h.Set("Traceparent", header)
		if got := ID(h); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
}
