//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	model     = "smol4"
	block     = 128 // tokens in a KV block of vLLM on a CPU
	replicas  = 2
	startTime = 5 * time.Minute // of the fleet, on a machine that is busy
)

// stage is what the tests play on: real replicas and the gateway's binary in
// front of them.
type stage struct {
	urls    []string // of the replicas
	run     string   // the fleet's process ids and logs, "" if it is not ours
	gateway string   // the gateway's binary, built when it is needed
	clients string   // the gateway's URLs
	admin   string
	log     string // the gateway's log file
}

// newStage starts everything and has the test stop it again.
func newStage(t *testing.T) *stage {
	s := &stage{}
	if urls := os.Getenv("VLLM_URLS"); urls != "" {
		s.urls = strings.Fields(urls)
	} else {
		s.urls, s.run = startFleet(t, replicas, "BLOCKS=44", "MAXLEN=2048")
	}
	s.startGateway(t)
	return s
}

// guard runs a shell script that a pipe ties to this process. The script must
// read its input to the end and then clean up: the end comes when the test ends,
// in whatever way, a crash or a timeout included.
func guard(t *testing.T, env []string, script string, args ...string) (out io.Reader, stop func() error) {
	t.Helper()
	cmd := exec.Command("bash", append([]string{"-c", script, "guard"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt from the terminal must not end it before its work
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return pipe, func() error {
		_ = in.Close()
		_, _ = io.Copy(io.Discard, pipe)
		return cmd.Wait()
	}
}

// startFleet starts n real replicas with fleet.sh's settings and has the test stop
// them again. run holds their process ids and logs.
func startFleet(t *testing.T, n int, settings ...string) (urls []string, run string) {
	t.Helper()
	run = t.TempDir()
	base := os.Getenv("BASE")
	if base == "" {
		base = "8101"
	}
	env := append([]string{"BASE=" + base, "MODEL=" + model, "EVENTS=0", "RUN=" + run, "PATIENCE=" + strconv.Itoa(int(startTime.Seconds()))}, settings...)
	began := time.Now()
	out, stop := guard(t, env, `"$1" up "$2" && echo serving && cat; "$1" down`, filepath.Join("..", "vllm", "fleet.sh"), strconv.Itoa(n))
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("stop the fleet: %v", err)
		}
	})
	var said bytes.Buffer
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "serving"; {
		_, _ = fmt.Fprintln(&said, lines.Text())
		if strings.HasPrefix(lines.Text(), "http://") {
			urls = append(urls, lines.Text())
		}
	}
	if len(urls) != n {
		t.Fatalf("the fleet did not start (test/vllm/setup.sh installs vLLM, BASE=port moves the replicas, VLLM_URLS=\"url url\" names others):\n%s", said.String())
	}
	t.Logf("%d replicas of %s serve after %.0f s", n, model, time.Since(began).Seconds())
	return urls, run
}

var servingLine = regexp.MustCompile(`msg=serving clients=(\S+) admin=(\S+)`)

// build makes a command's binary and returns its path.
func build(t *testing.T, command string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), command)
	if out, err := exec.Command("go", "build", "-C", filepath.Join("..", ".."), "-o", binary, "./cmd/"+command).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", command, err, out)
	}
	return binary
}

// startGateway has the gateway in front of the replicas; flags are further ones.
func (s *stage) startGateway(t *testing.T, flags ...string) {
	t.Helper()
	s.log = filepath.Join(t.TempDir(), "gateway.log")
	if s.gateway == "" {
		s.gateway = build(t, "gateway")
	}
	args := append([]string{s.log, s.gateway, "-listen", "127.0.0.1:0", "-admin", "127.0.0.1:0", "-policy-header", "-decision-headers"}, flags...)
	for _, u := range s.urls {
		args = append(args, "-replica", u)
	}
	_, stop := guard(t, nil, `log=$1; shift; "$@" >"$log" 2>&1 & cat; kill -TERM $!; wait $!`, args...)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("the gateway did not stop as it should: %v", err)
		}
		if t.Failed() {
			t.Logf("the end of the gateway's log:\n%s", tail(s.log, 40))
		}
	})
	eventually(t, 30*time.Second, "the gateway to be ready", func() error {
		text, _ := os.ReadFile(s.log)
		m := servingLine.FindSubmatch(text)
		if m == nil {
			return fmt.Errorf("it does not serve: %s", tail(s.log, 10))
		}
		s.clients, s.admin = string(m[1]), string(m[2])
		for _, u := range s.urls {
			up, err := s.up(u)
			if err == nil && !up {
				err = errors.New("it is not up for the gateway")
			}
			if err != nil {
				return fmt.Errorf("%s: %w: %s", u, err, tail(s.log, 10))
			}
		}
		return nil
	})
}

// id returns the name that the gateway gives to a replica.
func id(url string) string { return strings.TrimPrefix(url, "http://") }

// url returns the address of the replica that the gateway calls so.
func (s *stage) url(t *testing.T, id string) string {
	t.Helper()
	for _, u := range s.urls {
		if strings.TrimPrefix(u, "http://") == id {
			return u
		}
	}
	t.Fatalf("the answer names replica %q, which is none of %v", id, s.urls)
	return ""
}

// up returns what the gateway's metrics say of a replica.
func (s *stage) up(url string) (bool, error) {
	v, err := metric(s.admin, `warmpath_replica_up{replica="`+id(url)+`"}`)
	return v == 1, err
}

// engineCached returns how many prompt tokens a replica has taken from its cache
// since it started, by its own count.
func engineCached(t *testing.T, url string) float64 {
	t.Helper()
	v, err := metric(url, "vllm:prompt_tokens_cached_total{")
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// metric returns the sum of the series that begin so on a metrics page.
func metric(url, series string) (float64, error) {
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	found, sum := false, 0.0
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), series) {
			continue
		}
		fields := strings.Fields(lines.Text())
		v, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", lines.Text(), err)
		}
		found, sum = true, sum+v
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if !found {
		return 0, errors.New(url + "/metrics has no " + series)
	}
	return sum, nil
}

// eventually waits for something that comes about in another process.
func eventually(t *testing.T, within time.Duration, what string, check func() error) {
	t.Helper()
	end := time.Now().Add(within)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s: %v", within, what, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func tail(path string, lines int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
