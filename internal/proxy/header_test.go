package proxy

import (
	"bytes"
	"mime/multipart"
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
