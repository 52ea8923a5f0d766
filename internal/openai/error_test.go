package openai

import (
	"encoding/json"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestErrorsHaveTheFormThatClientsRead(t *testing.T) {
	for _, c := range []struct {
		e     Error
		param any
		retry string
	}{
		{Error{Status: 404, Type: "t", Code: "c", Param: "model", Message: "the \"m\" <does> not\nexist"}, "model", ""},
		{Error{Status: 503, Type: "t", Code: "c", Message: "m", RetryAfter: time.Second}, nil, "1"},
		{Error{Status: 503, Type: "t", Code: "c", Message: "m", RetryAfter: 1100 * time.Millisecond}, nil, "2"},
		{Error{Status: 503, Type: "t", Code: "c", Message: "m", RetryAfter: time.Nanosecond}, nil, "1"},
	} {
		w := httptest.NewRecorder()
		c.e.Write(w)
		h := w.Result().Header
		if w.Code != c.e.Status || h.Get("Content-Type") != "application/json" || h.Get("Retry-After") != c.retry ||
			h.Get("Content-Length") != strconv.Itoa(w.Body.Len()) {
			t.Errorf("%+v: status %d, headers %v", c.e, w.Code, h)
		}
		var got map[string]map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{"message": c.e.Message, "type": "t", "param": c.param, "code": "c"}
		if !reflect.DeepEqual(got["error"], want) || len(got) != 1 {
			t.Errorf("got %v, want %v", got, want)
		}
		if !ParseEvent(w.Body.Bytes()).Failed {
			t.Error("our own error is not taken for one")
		}
		if c.e.Error() != c.e.Message {
			t.Error(c.e.Error())
		}
	}
}

// TestErrorsOfMessagesAreAnthropicsToo: the SDKs look at type before anything else.
func TestErrorsOfMessagesAreAnthropicsToo(t *testing.T) {
	for _, endpoint := range []Endpoint{Other, Chat, Completions, Responses, Messages} {
		w := httptest.NewRecorder()
		(&Error{Status: 429, Type: "rate_limit_error", Code: "c", Message: "m", Endpoint: endpoint}).Write(w)
		var got struct {
			Type  string
			Error struct{ Type, Message, Code string }
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Header().Get("Content-Length") != strconv.Itoa(w.Body.Len()) {
			t.Fatal(err, w.Header())
		}
		if want := map[bool]string{true: "error"}[endpoint == Messages]; got.Type != want || got.Error.Type != "rate_limit_error" || got.Error.Message != "m" {
			t.Errorf("%v: %s", endpoint, w.Body)
		}
	}
}

func TestErrorsAreJSONWhateverTheirText(t *testing.T) {
	if e := (&Error{Message: "a\xffb"}); !json.Valid(e.JSON()) {
		t.Errorf("%s", e.JSON())
	}
}

// TestAnErrorInAStreamHasTheFormThatItsClientsReadBack: what the gateway writes
// into a broken stream is an error to our own reader of streams, too.
func TestAnErrorInAStreamHasTheFormThatItsClientsReadBack(t *testing.T) {
	e := &Error{Type: "api_error", Code: "replica_lost", Message: `it "broke" off`}
	for _, endpoint := range []Endpoint{Chat, Completions, Responses, Messages} {
		text := string(e.Event(endpoint))
		named := strings.HasPrefix(text, "event: error\n")
		if want := endpoint == Responses || endpoint == Messages; named != want {
			t.Errorf("%v: %q", endpoint, text)
		}
		_, data, _ := strings.Cut(text, "data: ")
		if !strings.HasSuffix(data, "}\n\n") || !json.Valid([]byte(data)) {
			t.Errorf("%v: %q", endpoint, text)
		}
		if got := ParseEvent([]byte(strings.TrimSpace(data))); !got.Failed {
			t.Errorf("%v: %q is no error to ParseEvent", endpoint, text)
		}
	}
}
