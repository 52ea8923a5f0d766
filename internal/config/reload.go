package config

import (
	"flag"
	"slices"
)

// reloadable are the keys of settings that a running gateway takes over; of
// files, their contents too.
var reloadable = []string{
	"log_level", "client.tls_cert", "client.tls_key", "auth.keys_file", "auth.salt_secret",
	"replica.key", "replica.tls_cert", "replica.tls_key",
}

// Changed returns the keys of the settings in which two configurations differ:
// those that a running gateway takes over, and those that need a restart.
func Changed(a, b *Config) (taken, restart []string) {
	before, after := values(a), values(b)
	for key, value := range after {
		switch {
		case before[key] == value:
		case slices.Contains(reloadable, key):
			taken = append(taken, key)
		default:
			restart = append(restart, key)
		}
	}
	slices.Sort(taken)
	slices.Sort(restart)
	return taken, restart
}

// values returns the settings as text, by key.
func values(c *Config) map[string]string {
	c = new(*c) // binding flags may write to it
	all := map[string]string{}
	c.Flags(new(string)).VisitAll(func(f *flag.Flag) {
		if key := Key(f.Name); key != "" {
			all[key] = f.Value.String()
		}
	})
	return all
}

// Files returns the files whose change is a reason to load the settings again.
func (c *Config) Files() (files []string) {
	for _, file := range []string{
		c.File, c.Auth.KeysFile, c.Client.TLSCert, c.Client.TLSKey, c.Replica.TLSCert, c.Replica.TLSKey,
	} {
		if file != "" {
			files = append(files, file)
		}
	}
	return files
}
