package config

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

// common are the flags that most users need, explained on the first screen of help.
var common = []string{"replica", "listen", "admin", "config", "check", "demo", "policy", "redis", "keys-file", "tls-cert", "drain-delay", "drain-timeout", "log-level"}

// groups are the sections of the file, with what they are about.
var groups = []struct{ section, about string }{
	{"", "process"},
	{"client", "clients' connections"},
	{"auth", "API keys"},
	{"replica", "replicas"},
	{"router", "choice of a replica"},
	{"proxy", "requests"},
	{"redis", "several gateways"},
}

// help writes the first screen: the common flags with their meaning, the names of all.
func help(w io.Writer, fs *flag.FlagSet) {
	_, _ = fmt.Fprintf(w, `gateway puts one OpenAI-compatible URL in front of several vLLM replicas and sends
each request where it is answered soonest, given the KV cache that each replica holds.

  gateway -replica http://10.0.0.1:8000 -replica http://10.0.0.2:8000
  gateway -demo 3                 # nothing at hand? three mock replicas
  gateway -config warmpath.yaml   # all of it, by the keys in docs/configuration.md

Each flag can be set in the environment too: -probe-interval is %s.
Flags override the environment, which overrides the file.

`, Env("probe-interval"))
	for _, name := range common {
		explain(w, fs.Lookup(name))
	}
	_, _ = fmt.Fprint(w, "\nThe others, by what they are about:\n")
	for _, g := range groups {
		var names []string
		fs.VisitAll(func(f *flag.Flag) {
			section, _, in := strings.Cut(Key(f.Name), ".")
			if !in {
				section = ""
			}
			if section == g.section && !slices.Contains(common, f.Name) {
				names = append(names, "-"+f.Name)
			}
		})
		fold(w, g.about, names)
	}
	_, _ = fmt.Fprint(w, "\ngateway -h all explains every flag, gateway -h redis those with redis in their name;\ndocs/configuration.md says more.\n")
}

// helpWord returns what stands behind -h, if that is a word.
func helpWord(args []string) (string, bool) {
	i := slices.IndexFunc(args, func(a string) bool {
		return slices.Contains([]string{"-h", "--h", "-help", "--help"}, a)
	})
	if i < 0 || i+1 == len(args) || strings.HasPrefix(args[i+1], "-") {
		return "", false
	}
	return args[i+1], true
}

// helpOn explains the flags that have word in their name, or all.
func helpOn(w io.Writer, fs *flag.FlagSet, word string) error {
	found := false
	fs.VisitAll(func(f *flag.Flag) {
		if word == "all" || strings.Contains(f.Name, word) {
			explain(w, f)
			found = true
		}
	})
	if !found {
		return fmt.Errorf("no flag has %q in its name: -h all explains every flag", word)
	}
	return nil
}

// explain writes a flag on one line, or on two if its name is long.
func explain(w io.Writer, f *flag.Flag) {
	value, usage := flag.UnquoteUsage(f)
	if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" {
		usage += " (default " + f.DefValue + ")"
	}
	name := strings.TrimSpace("-" + f.Name + " " + value)
	if len(name) > 24 {
		_, _ = fmt.Fprintf(w, "  %s\n", name)
		name = ""
	}
	_, _ = fmt.Fprintf(w, "  %-24s  %s\n", name, usage)
}

// fold writes names behind what they are about, in lines of 96 columns.
func fold(w io.Writer, about string, names []string) {
	line := fmt.Sprintf("  %-21s", about)
	for _, name := range names {
		if len(line)+1+len(name) > 96 {
			_, _ = fmt.Fprintln(w, line)
			line = fmt.Sprintf("  %-21s", "")
		}
		line += " " + name
	}
	_, _ = fmt.Fprintln(w, line)
}
