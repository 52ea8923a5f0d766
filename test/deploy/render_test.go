package deploy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const (
	chartDir  = "../../deploy/helm/warmpath"
	release   = "wp"
	namespace = "llm"
)

// kinds are the types of every resource that the chart may have.
var kinds = map[string]func() meta.Object{
	"v1 ConfigMap":       func() meta.Object { return new(core.ConfigMap) },
	"v1 Pod":             func() meta.Object { return new(core.Pod) },
	"v1 Service":         func() meta.Object { return new(core.Service) },
	"v1 ServiceAccount":  func() meta.Object { return new(core.ServiceAccount) },
	"apps/v1 DaemonSet":  func() meta.Object { return new(apps.DaemonSet) },
	"apps/v1 Deployment": func() meta.Object { return new(apps.Deployment) },
	"apps/v1 StatefulSet": func() meta.Object {
		return new(apps.StatefulSet)
	},
	"autoscaling/v2 HorizontalPodAutoscaler":   func() meta.Object { return new(autoscaling.HorizontalPodAutoscaler) },
	"networking.k8s.io/v1 Ingress":             func() meta.Object { return new(networking.Ingress) },
	"networking.k8s.io/v1 NetworkPolicy":       func() meta.Object { return new(networking.NetworkPolicy) },
	"policy/v1 PodDisruptionBudget":            func() meta.Object { return new(policy.PodDisruptionBudget) },
	"rbac.authorization.k8s.io/v1 Role":        func() meta.Object { return new(rbac.Role) },
	"rbac.authorization.k8s.io/v1 RoleBinding": func() meta.Object { return new(rbac.RoleBinding) },
	"monitoring.coreos.com/v1 ServiceMonitor":  func() meta.Object { return new(monitoring.ServiceMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule":  func() meta.Object { return new(monitoring.PrometheusRule) },
	"gateway.networking.k8s.io/v1 HTTPRoute":   func() meta.Object { return new(gateway.HTTPRoute) },
}

// rendered is what one set of values makes of the chart.
type rendered struct {
	objects map[string]meta.Object // by "Kind name"
	notes   string
}

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// renderErr renders the chart as helm install does, the values' schema included.
func renderErr(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	return renderChart(t, load(t), release, values)
}

func renderChart(t *testing.T, c *chart.Chart, release string, values map[string]any) (map[string]string, error) {
	t.Helper()
	options := chartutil.ReleaseOptions{Name: release, Namespace: namespace, IsInstall: true, Revision: 1}
	all, err := chartutil.ToRenderValues(c, values, options, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, all)
}

func render(t *testing.T, values map[string]any) rendered {
	t.Helper()
	files, err := renderErr(t, values)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, files)
}

func decode(t *testing.T, files map[string]string) rendered {
	t.Helper()
	r := rendered{objects: map[string]meta.Object{}}
	for name, text := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			r.notes = text
			continue
		}
		for _, doc := range releaseutil.SplitManifests(text) {
			r.add(t, name, doc)
		}
	}
	return r
}

// add decodes a resource; a field that its type does not have is an error.
func (r rendered) add(t *testing.T, file, doc string) {
	t.Helper()
	var head meta.TypeMeta
	if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
		t.Fatalf("%s: %v\n%s", file, err, doc)
	}
	if head.Kind == "" {
		return // comments alone
	}
	kind, known := kinds[head.APIVersion+" "+head.Kind]
	if !known {
		t.Fatalf("%s: no type for %s %s", file, head.APIVersion, head.Kind)
	}
	object := kind()
	text, err := yaml.YAMLToJSONStrict([]byte(doc)) // a key twice is an error
	if err != nil {
		t.Fatalf("%s: %s: %v", file, head.Kind, err)
	}
	// As an API server does it: startUpProbe is not startupProbe.
	if strict, err := json.UnmarshalStrict(text, object); err != nil || len(strict) > 0 {
		t.Fatalf("%s: %s: %v %v", file, head.Kind, err, strict)
	}
	key := head.Kind + " " + object.GetName()
	if r.objects[key] != nil {
		t.Errorf("%s: a second %s", file, key)
	}
	r.objects[key] = object
}

// get returns the resource of that kind and name.
func get[T meta.Object](t *testing.T, r rendered, name string) T {
	t.Helper()
	for _, o := range r.objects {
		if found, ok := o.(T); ok && o.GetName() == name {
			return found
		}
	}
	var none T
	t.Fatalf("no %T %s among %q", none, name, slices.Sorted(maps.Keys(r.objects)))
	return none
}

// valuesOf reads one of the chart's ci files.
func valuesOf(t *testing.T, name string) map[string]any {
	t.Helper()
	return parse(t, read(t, filepath.Join(chartDir, "ci", name+".yaml")))
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	values := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	return values
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// matrix returns the names of the chart's ci files.
func matrix(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chartDir, "ci", "*.yaml"))
	if err != nil || len(files) < 6 {
		t.Fatalf("%d files of values, %v", len(files), err)
	}
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".yaml"))
	}
	return names
}

// pods returns the pod templates of what runs, by "Kind name".
func (r rendered) pods() map[string]core.PodTemplateSpec {
	pods := map[string]core.PodTemplateSpec{}
	for key, o := range r.objects {
		switch o := o.(type) {
		case *apps.Deployment:
			pods[key] = o.Spec.Template
		case *apps.StatefulSet:
			pods[key] = o.Spec.Template
		case *apps.DaemonSet:
			pods[key] = o.Spec.Template
		case *core.Pod:
			pods[key] = core.PodTemplateSpec{ObjectMeta: o.ObjectMeta, Spec: o.Spec}
		}
	}
	return pods
}

// TestWritesWhatItRenders leaves the rendered matrix where RENDERED says, for schemas.py.
func TestWritesWhatItRenders(t *testing.T) {
	dir := os.Getenv("RENDERED")
	if dir == "" {
		t.Skip("RENDERED names no directory")
	}
	for _, name := range matrix(t) {
		files, err := renderErr(t, valuesOf(t, name))
		if err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for _, file := range slices.Sorted(maps.Keys(files)) {
			if strings.HasSuffix(file, ".yaml") {
				fmt.Fprintf(&all, "---\n%s\n", files[file])
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(all.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func fmtArgs(c core.Container) string { return fmt.Sprint(c.Command, c.Args) }
