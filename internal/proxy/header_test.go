package proxy

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
)

// FuzzFormModel reads forms of anybody's making.
func FuzzFormModel(f *testing.F) {
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	_ = w.WriteField("language", "en")
	_ = w.WriteField("model", "whisper")
	_ = w.Close()
	f.Add(w.FormDataContentType(), form.Bytes())
	f.Add("multipart/form-data; boundary=x", []byte("--x\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--x--"))
	f.Add("multipart/form-data", []byte("--\r\n"))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		if name := formModel(contentType, body); len(name) > 1<<10 {
			t.Errorf("a name of %d bytes", len(name))
		}
	})
}

func FuzzRequestID(f *testing.F) {
	for _, id := range []string{"", "a", "0af7651916cd43dd8448eb211c80319c", "a b", "a\nb", "ü", "../x", strings.Repeat("x", 129)} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		r := &http.Request{Header: http.Header{headerRequestID: {id}}}
		got := requestID(r)
		if got == "" || len(got) > maxID || strings.Trim(got, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:=+") != "" {
			t.Errorf("%q became %q", id, got)
		}
		if (got == id) != isID(id) {
			t.Errorf("%q is fine: %v, and became %q", id, isID(id), got)
		}
	})
}

func TestWhatAClientMadeUpIsShownInPart(t *testing.T) {
	if got := short(strings.Repeat("ü", 1000)); len(got) > 140 || !strings.HasSuffix(got, "ü…") {
		t.Errorf("got %q", got)
	}
	if got := short("m1"); got != "m1" {
		t.Errorf("got %q", got)
	}
}
