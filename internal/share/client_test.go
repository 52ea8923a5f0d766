package share

import (
	"fmt"
	"strings"
	"testing"
)

func TestURLs(t *testing.T) {
	for url, want := range map[string]string{
		"redis://r":                                "[r:6379] db 0 user  password  master  tls false cluster false",
		"redis://r:7000/3":                         "[r:7000] db 3 user  password  master  tls false cluster false",
		"rediss://me:a%40b@[::1]:7000":             "[[::1]:7000] db 0 user me password a@b master  tls true cluster false",
		"redis://:pw@a:1,b:2,c":                    "[a:1 b:2 c:6379] db 0 user  password pw master  tls false cluster false",
		"redis://a:1?cluster=true":                 "[a:1] db 0 user  password  master  tls false cluster true",
		"redis://u:p@a:1,b:2/4?master_name=m":      "[a:1 b:2] db 4 user u password p master m tls false cluster false",
		"redis://a:1/?master_name=m&cluster=false": "[a:1] db 0 user  password  master m tls false cluster false",
	} {
		c := DefaultConfig()
		c.URL = url
		o, err := c.options()
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		got := fmt.Sprintf("%v db %d user %s password %s master %s tls %v cluster %v", o.Addrs, o.DB, o.Username, o.Password, o.MasterName, o.TLSConfig != nil, o.IsClusterMode)
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", url, got, want)
		}
	}
	for _, url := range []string{
		"r:6379", "http://r", "redis://", "redis://r:port", "redis://r:1,", "redis://r/a", "redis://r?db=1", "redis://a,b/3",
		"redis://u:sec%ret@r:1", "redis://r?cluster=maybe", "redis://u:secret@r:0",
	} {
		c := DefaultConfig()
		c.URL = url
		if err := c.Validate(); err == nil {
			t.Errorf("%s: accepted", url)
		} else if strings.Contains(err.Error(), "sec") {
			t.Errorf("%s: the password is in the error: %v", url, err)
		}
	}
	c := DefaultConfig()
	c.URL, c.Password = "redis://u@r:1", "from elsewhere"
	if o, err := c.options(); err != nil || o.Password != "from elsewhere" || o.Username != "u" {
		t.Errorf("%+v, %v", o, err)
	}
	c.CAFile = "none.pem"
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "rediss://") {
		t.Errorf("a CA without TLS: %v", err)
	}
	c.URL = "rediss://r"
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "none.pem") {
		t.Errorf("a CA that is not there: %v", err)
	}
}
