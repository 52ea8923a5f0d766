package deploy

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/internal/config"
)

const composeDir = "../../deploy/compose"

func compose(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{composeDir + "/compose.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func TestComposeHasTheFleet(t *testing.T) {
	p := compose(t)
	want := []string{"gateway-1", "gateway-2", "grafana", "prometheus", "redis", "replica-1", "replica-2", "replica-3"}
	if got := p.ServiceNames(); !slices.Equal(got, want) {
		t.Errorf("services %q", got)
	}
	seen := map[string]bool{}
	for name, s := range p.Services {
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" || seen[port.Published] {
				t.Errorf("%s publishes %s on %q", name, port.Published, port.HostIP)
			}
			seen[port.Published] = true
		}
		for _, v := range s.Volumes {
			if _, err := os.Stat(v.Source); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestComposeGatewaysAreAlikeAndTheirSettingsGood(t *testing.T) {
	p := compose(t)
	first := p.Services["gateway-1"]
	if !slices.Equal(first.Command, p.Services["gateway-2"].Command) {
		t.Error("the gateways differ")
	}
	c, err := config.Load(first.Command, func(string) (string, bool) { return "", false }, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Replica.URLs) != 3 || c.Redis.URL == "" {
		t.Errorf("replicas %q, Redis %q", c.Replica.URLs, c.Redis.URL)
	}
	for _, url := range append(c.Replica.URLs, c.Redis.URL) {
		host := regexp.MustCompile(`//([^:]+):`).FindStringSubmatch(url)[1]
		if _, there := p.Services[host]; !there {
			t.Errorf("%s is no service", url)
		}
	}
	if grace := time.Duration(*first.StopGracePeriod); grace < c.DrainDelay+c.DrainTimeout+5*time.Second {
		t.Errorf("killed after %v, a drain takes up to %v", grace, c.DrainDelay+c.DrainTimeout)
	}
	// Who comes through a published port is not on the container's host.
	if _, settable := first.Environment["WARMPATH_ADMIN_TOKEN"]; !settable {
		t.Error("nobody can open the admin pages")
	}
	if !first.ReadOnly || !slices.Equal(first.CapDrop, []string{"ALL"}) {
		t.Error("the gateway may do more than it needs")
	}
}

func TestComposeScrapesWhatRunsAndShowsTheDashboard(t *testing.T) {
	p := compose(t)
	var prometheus struct {
		RuleFiles     []string `json:"rule_files"`
		ScrapeConfigs []struct {
			JobName string `json:"job_name"`
			Static  []struct {
				Targets []string `json:"targets"`
			} `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal([]byte(read(t, composeDir+"/prometheus.yml")), &prometheus); err != nil {
		t.Fatal(err)
	}
	if len(prometheus.ScrapeConfigs) != 2 || !strings.Contains(prometheus.ScrapeConfigs[0].JobName, "warmpath") || len(prometheus.RuleFiles) != 1 {
		t.Fatalf("%+v", prometheus)
	}
	for _, job := range prometheus.ScrapeConfigs {
		for _, target := range job.Static[0].Targets {
			host, _, _ := strings.Cut(target, ":")
			if _, there := p.Services[host]; !there {
				t.Errorf("%s is no service", target)
			}
		}
	}
	var providers struct {
		Providers []struct {
			Options struct{ Path string }
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, composeDir+"/grafana/dashboards.yaml")), &providers); err != nil {
		t.Fatal(err)
	}
	path := providers.Providers[0].Options.Path
	if !slices.ContainsFunc(p.Services["grafana"].Volumes, func(v types.ServiceVolumeConfig) bool {
		_, err := os.Stat(v.Source + "/warmpath.json")
		return v.Target == path && err == nil
	}) {
		t.Errorf("Grafana looks for dashboards in %s, where none are", path)
	}
}
