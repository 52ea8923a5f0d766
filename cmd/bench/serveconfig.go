package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const serveConfigUsage = `usage: bench serve-config -model DIR|NAME [-gpus N] [flags]

Prints the vLLM command for a model on a number of GPUs, and what each of its flags does to a gateway in front:

  bench serve-config -model /models/Qwen2.5-72B-Instruct -gpus 4
  bench serve-config -model /models/Qwen2.5-72B-Instruct -gpus 8 -replicas 2     # two replicas of four GPUs
  bench serve-config -model /models/example -quiet > serve.sh                     # the commands alone
`

// setting is one flag of vLLM's and its reason.
type setting struct{ name, value, why string }

func serveConfig(args []string, out io.Writer) error {
	fs := flagsOf("serve-config", serveConfigUsage)
	model := fs.String("model", "", "folder or `name` of the model; required")
	served := fs.String("served-name", "", "`name` that clients ask for; empty is the model's last part")
	gpus := fs.Int("gpus", 1, "`number` of GPUs of all replicas together")
	replicas := fs.Int("replicas", 1, "`number` of replicas that share them")
	batched := fs.Int("max-batched-tokens", 8192, "most `tokens` of a step")
	memory := fs.Float64("memory", 0.92, "`share` of each GPU's memory that vLLM takes")
	length := fs.Int("max-model-len", 0, "longest sequence in `tokens`; 0 is the model's own")
	port := fs.Int("port", 8000, "first `port`; replicas take the following ones")
	quiet := fs.Bool("quiet", false, "print the commands without the reasons")
	if err := fs.Parse(args); err != nil {
		return err
	}
	switch {
	case *model == "":
		return errors.New("-model is missing: give a folder or a name such as Qwen/Qwen2.5-72B-Instruct")
	case strings.ContainsAny(*model+*served, "'\n"):
		return errors.New("-model and -served-name must hold no quotes and no line ends")
	case *gpus < 1 || *replicas < 1 || *gpus%*replicas != 0:
		return fmt.Errorf("-gpus %d cannot be shared by -replicas %d evenly", *gpus, *replicas)
	case *memory <= 0 || *memory >= 1:
		return fmt.Errorf("-memory must be between 0 and 1, not %v", *memory)
	case *batched < 1 || *length < 0 || *port < 1:
		return errors.New("-max-batched-tokens and -port must be at least 1, -max-model-len at least 0")
	}
	if *served == "" {
		parts := strings.Split(strings.TrimRight(*model, "/"), "/")
		*served = parts[len(parts)-1]
	}
	each := *gpus / *replicas
	settings := []setting{
		{"served-model-name", quoted(*served), "the name in requests; replicas of one name are one pool of the gateway's"},
		{"tensor-parallel-size", strconv.Itoa(each), "one replica over this many GPUs: to the gateway they are one KV cache and one queue. It must divide the model's attention heads. Where the model fits on fewer, more replicas give more throughput; more GPUs give lower TTFT"},
		{"enable-prefix-caching", "", "what routing by prefix lives on; without it every prompt is computed whole wherever it goes"},
		{"enable-prompt-tokens-details", "", "usage tells cached tokens: the gateway checks its predictions by them, and bench its cached share"},
		{"enable-chunked-prefill", "", "a long prompt is computed in pieces between other requests' tokens, so that it does not stop their answers. The gateway counts waiting work in tokens, which fits"},
		{"max-num-batched-tokens", strconv.Itoa(*batched), "the size of those pieces: larger gives prompts a sooner first token, smaller gives running answers smaller gaps"},
		{"gpu-memory-utilization", strconv.FormatFloat(*memory, 'g', -1, 64), "what the weights leave of it is KV cache, the capacity that the gateway learns from vllm:cache_config_info. More holds more prefixes; too much fails under long prompts"},
	}
	if *length > 0 {
		settings = append(settings, setting{"max-model-len", strconv.Itoa(*length), "one sequence may take so much of the cache; the gateway passes the engine's refusal on"})
	}
	for r := range *replicas {
		if err := printServe(out, *model, settings, r, *replicas, each, *port+r, *quiet); err != nil {
			return err
		}
	}
	if *quiet {
		return nil
	}
	var urls []string
	for r := range *replicas {
		urls = append(urls, fmt.Sprintf("-replica http://127.0.0.1:%d", *port+r))
	}
	_, err := fmt.Fprintf(out, "# and in front of them, on a port of its own:\n#   gateway -listen :8080 %s\n#   bench ttft -endpoint http://127.0.0.1:8080 -model %s\n", strings.Join(urls, " "), *served)
	return err
}

// printServe prints the r-th replica's command, the reasons before it.
func printServe(out io.Writer, model string, settings []setting, r, replicas, gpus, port int, quiet bool) error {
	var b strings.Builder
	if r == 0 && !quiet {
		for _, s := range settings {
			fmt.Fprintf(&b, "# --%s: %s\n", s.name, s.why)
		}
		b.WriteString("# Weights that lie on the node's own disk are the largest part of a fast start: give a folder, not a name.\n\n")
	}
	if replicas > 1 {
		var ids []string
		for g := range gpus {
			ids = append(ids, strconv.Itoa(r*gpus+g))
		}
		fmt.Fprintf(&b, "CUDA_VISIBLE_DEVICES=%s ", strings.Join(ids, ","))
	}
	fmt.Fprintf(&b, "vllm serve %s", quoted(model))
	for _, s := range settings {
		fmt.Fprintf(&b, " \\\n    --%s", s.name)
		if s.value != "" {
			b.WriteString(" " + s.value)
		}
	}
	fmt.Fprintf(&b, " \\\n    --port %d", port)
	if replicas > 1 {
		b.WriteString(" &")
	}
	b.WriteString("\n\n")
	_, err := io.WriteString(out, b.String())
	return err
}

// quoted is a word of a shell's.
func quoted(s string) string {
	if strings.ContainsFunc(s, func(c rune) bool {
		return !strings.ContainsRune("/._-:@", c) && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z')
	}) {
		return "'" + s + "'"
	}
	return s
}
