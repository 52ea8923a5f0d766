package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/modelcache"
)

func TestLintHasNothingToSay(t *testing.T) {
	for _, name := range matrix(t) {
		for _, m := range lint.All(chartDir, valuesOf(t, name), namespace, true).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %s", name, m)
			}
		}
	}
}

// TestEveryResourceHoldsTogether renders the matrix and checks what must hold of any
// resource of its kind.
func TestEveryResourceHoldsTogether(t *testing.T) {
	for _, name := range matrix(t) {
		t.Run(name, func(t *testing.T) {
			r := render(t, valuesOf(t, name))
			if len(r.objects) < 5 {
				t.Fatalf("only %d resources", len(r.objects))
			}
			for key, o := range r.objects {
				if len(o.GetName()) > 63 || o.GetLabels()["app.kubernetes.io/instance"] != release {
					t.Errorf("%s: labels %v", key, o.GetLabels())
				}
				switch o := o.(type) {
				case *core.Service:
					checkService(t, key, o, r)
				case *policy.PodDisruptionBudget:
					checkSelector(t, key, o.Spec.Selector.MatchLabels, r)
				case *networking.NetworkPolicy:
					checkSelector(t, key, o.Spec.PodSelector.MatchLabels, r)
				case *autoscaling.HorizontalPodAutoscaler:
					target := o.Spec.ScaleTargetRef
					if r.objects[target.Kind+" "+target.Name] == nil {
						t.Errorf("%s scales %s %s, which is not there", key, target.Kind, target.Name)
					}
				}
			}
			for key, pod := range r.pods() {
				checkPod(t, key, pod, r)
			}
		})
	}
}

func checkService(t *testing.T, key string, s *core.Service, r rendered) {
	pod := checkSelector(t, key, s.Spec.Selector, r)
	for _, p := range s.Spec.Ports {
		named := func(c core.ContainerPort) bool { return c.Name == p.TargetPort.StrVal }
		if !slices.ContainsFunc(pod.Spec.Containers, func(c core.Container) bool { return slices.ContainsFunc(c.Ports, named) }) {
			t.Errorf("%s: no container has a port %s", key, p.TargetPort.StrVal)
		}
	}
}

// checkSelector returns the one pod template that the labels select.
func checkSelector(t *testing.T, key string, selector map[string]string, r rendered) (pod core.PodTemplateSpec) {
	found := 0
	for _, p := range r.pods() {
		if labels.SelectorFromSet(selector).Matches(labels.Set(p.Labels)) {
			pod, found = p, found+1
		}
	}
	if found != 1 {
		t.Errorf("%s selects %d kinds of pods by %v", key, found, selector)
	}
	return pod
}

func checkPod(t *testing.T, key string, p core.PodTemplateSpec, r rendered) {
	s := p.Spec
	gatewayPod := p.Labels["app.kubernetes.io/component"] == "gateway"
	if s.AutomountServiceAccountToken == nil || *s.AutomountServiceAccountToken && !gatewayPod {
		t.Errorf("%s: a token of the cluster is mounted", key)
	}
	if s.EnableServiceLinks == nil || *s.EnableServiceLinks {
		t.Errorf("%s: every Service becomes variables of it", key)
	}
	if s.SecurityContext == nil || s.SecurityContext.SeccompProfile == nil || s.SecurityContext.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%s: no seccomp profile", key)
	}
	volumes := map[string]bool{}
	for _, v := range s.Volumes {
		volumes[v.Name] = true
		if v.ConfigMap != nil && r.objects["ConfigMap "+v.ConfigMap.Name] == nil {
			t.Errorf("%s mounts the ConfigMap %s, which is not there", key, v.ConfigMap.Name)
		}
	}
	for _, c := range slices.Concat(s.InitContainers, s.Containers) {
		what := key + ", " + c.Name
		sc := c.SecurityContext
		if sc == nil || sc.AllowPrivilegeEscalation == nil || *sc.AllowPrivilegeEscalation || sc.Capabilities == nil || !slices.Equal(sc.Capabilities.Drop, []core.Capability{"ALL"}) {
			t.Errorf("%s: security context %+v", what, sc)
			continue
		}
		if c.Name != "vllm" && (sc.ReadOnlyRootFilesystem == nil || !*sc.ReadOnlyRootFilesystem) {
			t.Errorf("%s: its root can be written to", what)
		}
		if c.Image == "" || strings.HasSuffix(c.Image, ":") || c.ImagePullPolicy == "" {
			t.Errorf("%s: image %q, pulled %q", what, c.Image, c.ImagePullPolicy)
		}
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("%s mounts %s, which is not there", what, m.Name)
			}
		}
		for _, probe := range []*core.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
			if probe == nil {
				continue
			}
			port := ""
			if probe.HTTPGet != nil {
				port = probe.HTTPGet.Port.StrVal
			} else {
				port = probe.TCPSocket.Port.StrVal
			}
			if !slices.ContainsFunc(c.Ports, func(p core.ContainerPort) bool { return p.Name == port }) {
				t.Errorf("%s: a probe of the port %q, which it does not have", what, port)
			}
		}
	}
	// Only what owns the node's directory, and vLLM's own image, run as root.
	if component := p.Labels["app.kubernetes.io/component"]; component != "modelcache" && component != "vllm" {
		if s.SecurityContext.RunAsNonRoot == nil || !*s.SecurityContext.RunAsNonRoot {
			t.Errorf("%s: may run as root", key)
		}
	}
}

func TestMinimalIsSmall(t *testing.T) {
	r := render(t, valuesOf(t, "minimal"))
	want := []string{"ConfigMap wp-warmpath", "Deployment wp-warmpath", "PodDisruptionBudget wp-warmpath", "Service wp-warmpath", "Service wp-warmpath-admin", "ServiceAccount wp-warmpath"}
	if got := slices.Sorted(maps.Keys(r.objects)); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if c := settings(t, r); !slices.Equal(c.Replica.URLs, []string{"http://10.0.0.1:8000"}) || c.Redis.URL != "" {
		t.Errorf("replicas %q, Redis %q", c.Replica.URLs, c.Redis.URL)
	}
}

// settings loads the gateway's file as the gateway does.
func settings(t *testing.T, r rendered) *config.Config {
	t.Helper()
	c, err := loadSettings(t, get[*core.ConfigMap](t, r, "wp-warmpath").Data["warmpath.yaml"])
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestDefaultsAreTheGatewaysOwn compares what the gateway gets from the chart's
// defaults with what it has without them.
func TestDefaultsAreTheGatewaysOwn(t *testing.T) {
	got, want := settings(t, render(t, valuesOf(t, "minimal"))), config.Default()
	want.Admin = ":9090" // Prometheus and the kubelet have to reach it
	want.Replica.URLs, want.File = got.Replica.URLs, got.File
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestEverySettingReachesTheGateway(t *testing.T) {
	r := render(t, valuesOf(t, "everything"))
	c := settings(t, r)
	for what, ok := range map[string]bool{
		"listen and admin":  c.Listen == ":8080" && c.Admin == ":9090",
		"drain":             c.DrainDelay == 10*time.Second && c.DrainTimeout == 5*time.Minute,
		"policy and shadow": c.Router.Policy == "prefix" && c.Router.Shadow == "least-tokens",
		"usage":             c.Proxy.Usage == "ask" && c.Proxy.DecisionHeaders,
		"keys":              c.Auth.KeysFile == "/etc/warmpath/keys/keys.yaml",
		"log format":        c.LogFormat == "json",
		"redis":             c.Redis.URL == "redis://wp-warmpath-redis.llm.svc.cluster.local:6379",
	} {
		if !ok {
			t.Errorf("%s: %+v", what, c)
		}
	}
	urls := sources(t, r)
	want := []string{"file:/etc/warmpath/config/more.txt", "kubernetes://llm/wp-warmpath-vllm:8000", "kubernetes://llm/wp-warmpath-mock:8000", "kubernetes://llm/other-vllm:8000"}
	if !slices.Equal(urls, want) {
		t.Errorf("sources %q", urls)
	}
	d := get[*apps.Deployment](t, r, "wp-warmpath")
	env := map[string]core.EnvVar{}
	for _, e := range d.Spec.Template.Spec.Containers[0].Env {
		env[e.Name] = e
	}
	for name, secret := range map[string]string{"WARMPATH_REPLICA_KEY": "vllm-key", "WARMPATH_SALT_SECRET": "warmpath-salt", "WARMPATH_ADMIN_TOKEN": "warmpath-admin", "WARMPATH_REDIS_PASSWORD": "redis-password"} {
		if env[name].ValueFrom == nil || env[name].ValueFrom.SecretKeyRef.Name != secret {
			t.Errorf("%s: %+v", name, env[name])
		}
	}
	if env["OTEL_EXPORTER_OTLP_ENDPOINT"].Value != "http://otel:4317" || env["GOMEMLIMIT"].Value != "2700MiB" {
		t.Errorf("environment %v", env)
	}
	if text := get[*core.ConfigMap](t, r, "wp-warmpath").Data["warmpath.yaml"]; regexp.MustCompile("password|salt|admin_token|key: ").MatchString(text) {
		t.Errorf("a secret's place is not a ConfigMap:\n%s", text)
	}
	if d.Spec.Replicas != nil {
		t.Error("replicas are set beside an autoscaler, which each upgrade would fight")
	}
}

func TestGateway(t *testing.T) {
	r := render(t, valuesOf(t, "mock"))
	d := get[*apps.Deployment](t, r, "wp-warmpath")
	if *d.Spec.Replicas != 2 || d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntVal != 0 {
		t.Errorf("replicas %v, strategy %+v", *d.Spec.Replicas, d.Spec.Strategy.RollingUpdate)
	}
	pod := d.Spec.Template.Spec
	c := settings(t, r)
	drain := c.DrainDelay + c.DrainTimeout
	if grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second; grace < drain+5*time.Second || grace > drain+30*time.Second {
		t.Errorf("a grace period of %v for a drain of %v", grace, drain)
	}
	gw := pod.Containers[0]
	ready := gw.ReadinessProbe
	if out := time.Duration(ready.PeriodSeconds*ready.FailureThreshold) * time.Second; out >= c.DrainDelay {
		t.Errorf("out of the Service after %v, closed after %v", out, c.DrainDelay)
	}
	if ready.HTTPGet.Path != "/readyz" || gw.LivenessProbe.HTTPGet.Path != "/healthz" || ready.HTTPGet.Port.StrVal != "admin" {
		t.Errorf("probes %+v %+v", ready.HTTPGet, gw.LivenessProbe.HTTPGet)
	}
	if len(pod.TopologySpreadConstraints) != 2 || pod.TopologySpreadConstraints[0].TopologyKey != "kubernetes.io/hostname" {
		t.Errorf("spread %+v", pod.TopologySpreadConstraints)
	}
	if get[*policy.PodDisruptionBudget](t, r, "wp-warmpath").Spec.MaxUnavailable.IntVal != 1 {
		t.Error("a drain of nodes may take both gateways")
	}
	if gw.Resources.Limits.Memory().Value() < c.Router.IndexBytes+c.Proxy.MaxBufferedBytes {
		t.Errorf("%v of memory hold neither the index nor the bodies", gw.Resources.Limits.Memory())
	}
	if s := get[*core.Service](t, r, "wp-warmpath"); len(s.Spec.Ports) != 1 || s.Spec.Ports[0].TargetPort.StrVal != "http" {
		t.Errorf("clients reach %+v", s.Spec.Ports)
	}
	before, changed := d.Spec.Template.Annotations["checksum/config"], valuesOf(t, "mock")
	changed["gateway"] = map[string]any{"policy": "random"}
	if get[*apps.Deployment](t, render(t, changed), "wp-warmpath").Spec.Template.Annotations["checksum/config"] == before {
		t.Error("another policy is no rollout")
	}
}

func TestLongDrainsHaveTheirTime(t *testing.T) {
	r := render(t, valuesOf(t, "everything"))
	if got := *get[*apps.Deployment](t, r, "wp-warmpath").Spec.Template.Spec.TerminationGracePeriodSeconds; got != 320 {
		t.Errorf("%d s", got)
	}
}

func TestRightsAreTheLeast(t *testing.T) {
	r := render(t, valuesOf(t, "mock"))
	role := get[*rbac.Role](t, r, "wp-warmpath")
	want := []rbac.PolicyRule{{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"get", "list", "watch"}}}
	if !reflect.DeepEqual(role.Rules, want) || role.Namespace != namespace {
		t.Errorf("in %s: %+v", role.Namespace, role.Rules)
	}
	binding := get[*rbac.RoleBinding](t, r, "wp-warmpath")
	if len(binding.Subjects) != 1 || binding.Subjects[0].Name != "wp-warmpath" || binding.Subjects[0].Namespace != namespace {
		t.Errorf("given to %+v", binding.Subjects)
	}
	elsewhere := render(t, parse(t, "replicas: {services: [{name: vllm, port: 8000}]}\ndiscovery: {namespace: engines}"))
	if got := get[*rbac.Role](t, elsewhere, "wp-warmpath").Namespace; got != "engines" {
		t.Errorf("rights in %s", got)
	}
	if got := sources(t, elsewhere); !slices.Equal(got, []string{"kubernetes://engines/vllm:8000"}) {
		t.Errorf("sources %q", got)
	}
}

// TestASourceThatIsNamedIsWatched has it as a URL, with rights that the chart gives or
// somebody else.
func TestASourceThatIsNamedIsWatched(t *testing.T) {
	for _, create := range []bool{true, false} {
		r := render(t, parse(t, fmt.Sprintf("replicas: {urls: ['kubernetes:///vllm:http']}\nrbac: {create: %t}", create)))
		if pod := get[*apps.Deployment](t, r, "wp-warmpath").Spec.Template.Spec; !*pod.AutomountServiceAccountToken {
			t.Error("the pod has no token")
		}
		if _, made := r.objects["Role wp-warmpath"]; made != create {
			t.Errorf("rbac.create %t, and a Role: %t", create, made)
		}
	}
}

func TestWithoutRightsItIsDNS(t *testing.T) {
	r := render(t, valuesOf(t, "no-vllm"))
	for key := range r.objects {
		if strings.HasPrefix(key, "Role") || strings.HasPrefix(key, "ServiceAccount") {
			t.Errorf("%s", key)
		}
	}
	if got := sources(t, r); !slices.Equal(got, []string{"dns://vllm.llm.svc.cluster.local:8000"}) {
		t.Errorf("sources %q", got)
	}
	named := valuesOf(t, "no-vllm")
	named["replicas"] = parse(t, "services: [{name: vllm, port: http}]")
	if got := sources(t, render(t, named)); !slices.Equal(got, []string{"dns+srv://_http._tcp.vllm.llm.svc.cluster.local"}) {
		t.Errorf("sources %q", got)
	}
	pod := get[*apps.Deployment](t, r, "wp-warmpath").Spec.Template.Spec
	if *pod.AutomountServiceAccountToken || pod.ServiceAccountName != "default" {
		t.Errorf("account %s", pod.ServiceAccountName)
	}
}

func TestExternalRedis(t *testing.T) {
	r := render(t, valuesOf(t, "external-redis"))
	text := get[*core.ConfigMap](t, r, "wp-warmpath").Data["warmpath.yaml"]
	for _, want := range []string{"url: rediss://warmpath@redis.example.com:6380", "ca_file: /etc/warmpath/redis/ca.crt", "namespace: fleet-a"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
	if r.objects["Deployment wp-warmpath-redis"] != nil {
		t.Error("a Redis of its own beside it")
	}
}

func TestRedisKeepsNothing(t *testing.T) {
	c := get[*apps.Deployment](t, render(t, valuesOf(t, "everything")), "wp-warmpath-redis").Spec.Template.Spec.Containers[0]
	for _, want := range []string{"--save  --appendonly no", "--maxmemory 256mb --maxmemory-policy noeviction", "--requirepass $(REDIS_PASSWORD)"} {
		if !strings.Contains(fmtArgs(c), want) {
			t.Errorf("%s: %s", want, fmtArgs(c))
		}
	}
}

func TestVLLMHasTheFlags(t *testing.T) {
	s := get[*apps.StatefulSet](t, render(t, valuesOf(t, "tls")), "wp-warmpath-vllm")
	c := s.Spec.Template.Spec.Containers[0]
	if fmtArgs(core.Container{Command: c.Command, Args: c.Args[:1]}) != "[vllm serve] [Qwen/Qwen2.5-72B-Instruct]" {
		t.Errorf("runs %s", fmtArgs(c))
	}
	for _, want := range []string{"--served-model-name=Qwen/Qwen2.5-72B-Instruct", "--tensor-parallel-size=4", "--enable-prefix-caching", "--enable-chunked-prefill", "--max-num-batched-tokens=8192", "--gpu-memory-utilization=0.92", "--enable-prompt-tokens-details"} {
		if !slices.Contains(c.Args, want) {
			t.Errorf("%s is not among %q", want, c.Args)
		}
	}
	if gpus := c.Resources.Limits["nvidia.com/gpu"]; gpus.Value() != 4 {
		t.Errorf("%v GPUs", gpus)
	}
	if c.StartupProbe.HTTPGet.Path != "/health" || c.StartupProbe.PeriodSeconds*c.StartupProbe.FailureThreshold < 1800 {
		t.Errorf("%+v", c.StartupProbe)
	}
	off := valuesOf(t, "tls")
	off["vllm"].(map[string]any)["enablePrefixCaching"] = false
	if c := get[*apps.StatefulSet](t, render(t, off), "wp-warmpath-vllm").Spec.Template.Spec.Containers[0]; !slices.Contains(c.Args, "--no-enable-prefix-caching") {
		t.Errorf("prefix caching cannot be turned off: %q", c.Args)
	}
}

func TestModelsComeFromTheNodesCache(t *testing.T) {
	r := render(t, valuesOf(t, "everything"))
	text := get[*core.ConfigMap](t, r, "wp-warmpath-model").Data["model.yaml"]
	c, err := modelcache.ParseConfig([]byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	path := c.Cache.NodeLocalPath + "/models/" + strings.Replace(c.Model.ExpectedDigest, ":", "-", 1)
	pod := get[*apps.StatefulSet](t, r, "wp-warmpath-vllm").Spec.Template.Spec
	if pod.Containers[0].Args[0] != path {
		t.Errorf("vLLM reads %q", pod.Containers[0].Args)
	}
	mount := pod.Containers[0].VolumeMounts[1]
	if mount.MountPath != c.Cache.NodeLocalPath || !mount.ReadOnly {
		t.Errorf("mounted %+v", mount)
	}
	if init := pod.InitContainers[0]; fmtArgs(init) != "[/modelcache] [ensure -config=/etc/modelcache/model.yaml -no-pin -warm]" {
		t.Errorf("before it runs %s", fmtArgs(init))
	}
	agent := get[*apps.DaemonSet](t, r, "wp-warmpath-modelcache").Spec.Template
	if fmtArgs(agent.Spec.Containers[0]) != "[/modelcache] [serve -config=/etc/modelcache/model.yaml -listen=:9095]" {
		t.Errorf("on each node runs %s", fmtArgs(agent.Spec.Containers[0]))
	}
	if !reflect.DeepEqual(agent.Spec.NodeSelector, pod.NodeSelector) || !reflect.DeepEqual(agent.Spec.Tolerations, pod.Tolerations) {
		t.Errorf("the agent is on other nodes: %v, %v", agent.Spec.NodeSelector, agent.Spec.Tolerations)
	}
	alone := valuesOf(t, "everything")
	alone["modelCache"].(map[string]any)["daemonSet"] = false
	pod = get[*apps.StatefulSet](t, render(t, alone), "wp-warmpath-vllm").Spec.Template.Spec
	if slices.Contains(pod.InitContainers[0].Args, "-no-pin") {
		t.Error("without an agent nothing keeps the model from eviction")
	}
}

func TestRoutesDoNotBufferAndHaveTime(t *testing.T) {
	r := render(t, valuesOf(t, "everything"))
	a := get[*networking.Ingress](t, r, "wp-warmpath").Annotations
	const nginx = "nginx.ingress.kubernetes.io/"
	if a[nginx+"proxy-buffering"] != "off" || a[nginx+"proxy-request-buffering"] != "off" || a[nginx+"proxy-read-timeout"] != "3600" || a[nginx+"proxy-body-size"] != "64m" {
		t.Errorf("%v", a)
	}
	route := get[*gateway.HTTPRoute](t, r, "wp-warmpath").Spec.Rules[0]
	if *route.Timeouts.Request != "0s" || *route.Timeouts.BackendRequest != "0s" || route.BackendRefs[0].Name != "wp-warmpath" {
		t.Errorf("%+v", route)
	}
}

func TestTLS(t *testing.T) {
	r := render(t, valuesOf(t, "tls"))
	text := get[*core.ConfigMap](t, r, "wp-warmpath").Data["warmpath.yaml"]
	if !strings.Contains(text, "tls_cert: /etc/warmpath/tls/tls.crt") || !strings.Contains(text, "tls_key: /etc/warmpath/tls/tls.key") {
		t.Errorf("%s", text)
	}
	if port := get[*core.Service](t, r, "wp-warmpath").Spec.Ports[0]; port.Name != "https" || *port.AppProtocol != "https" {
		t.Errorf("%+v", port)
	}
	if get[*networking.Ingress](t, r, "wp-warmpath").Annotations["nginx.ingress.kubernetes.io/backend-protocol"] != "HTTPS" {
		t.Error("the Ingress speaks HTTP to HTTPS")
	}
	if !strings.Contains(r.notes, "https://wp-warmpath.llm.svc.cluster.local:8080/v1") {
		t.Errorf("%s", r.notes)
	}
}

func TestMonitoringIsTheRepositorys(t *testing.T) {
	r := render(t, valuesOf(t, "everything"))
	var rules monitoring.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict([]byte(read(t, "../../deploy/prometheus/rules.yml")), &rules); err != nil {
		t.Fatal(err)
	}
	if got := get[*monitoring.PrometheusRule](t, r, "wp-warmpath").Spec; !reflect.DeepEqual(got, rules) || len(rules.Groups) < 2 {
		t.Error("the rules are not those of deploy/prometheus/rules.yml")
	}
	var got, want any
	if err := json.Unmarshal([]byte(get[*core.ConfigMap](t, r, "wp-warmpath-dashboard").Data["warmpath.json"]), &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(read(t, "../../deploy/grafana/warmpath.json")), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Error("the dashboard is not that of deploy/grafana")
	}
	monitor := get[*monitoring.ServiceMonitor](t, r, "wp-warmpath")
	admin := get[*core.Service](t, r, "wp-warmpath-admin")
	if !labels.SelectorFromSet(monitor.Spec.Selector.MatchLabels).Matches(labels.Set(admin.Labels)) {
		t.Errorf("%v does not select %v", monitor.Spec.Selector.MatchLabels, admin.Labels)
	}
	if job := monitor.Spec.Endpoints[0].RelabelConfigs[0]; job.TargetLabel != "job" || *job.Replacement != "warmpath" {
		t.Errorf("the job is called by %+v", job)
	}
	// Labels that the operator gives every series would take the place of the gateway's.
	clash := regexp.MustCompile(`(?m)^\| ` + "`warmpath_[a-z_]+`" + ` \| [^|]*\b(endpoint|pod|service|namespace|container|job|instance)\b[^|]*\|`).MatchString(read(t, "../../docs/metrics.md"))
	if clash != monitor.Spec.Endpoints[0].HonorLabels {
		t.Errorf("labels of the operator's names %v, kept %v", clash, monitor.Spec.Endpoints[0].HonorLabels)
	}
	if monitor.Spec.Endpoints[0].Port != admin.Spec.Ports[0].Name {
		t.Errorf("scrapes the port %s", monitor.Spec.Endpoints[0].Port)
	}
}

func TestOnlyGatewaysReachWhatIsBehindThem(t *testing.T) {
	r := render(t, valuesOf(t, "everything"))
	for _, part := range []string{"vllm", "mock", "redis"} {
		from := get[*networking.NetworkPolicy](t, r, "wp-warmpath-"+part).Spec.Ingress[0].From
		if from[0].PodSelector.MatchLabels["app.kubernetes.io/component"] != "gateway" {
			t.Errorf("%s is reached by %+v", part, from)
		}
	}
	ingress := get[*networking.NetworkPolicy](t, r, "wp-warmpath").Spec.Ingress
	if len(ingress) != 2 || ingress[1].Ports[0].Port.StrVal != "admin" || len(ingress[1].From) != 1 {
		t.Errorf("%+v", ingress)
	}
	closed := valuesOf(t, "mock")
	closed["networkPolicy"] = map[string]any{"enabled": true}
	if ingress := get[*networking.NetworkPolicy](t, render(t, closed), "wp-warmpath").Spec.Ingress; len(ingress) != 1 {
		t.Errorf("nobody was let to the admin port: %+v", ingress)
	}
}

func TestAutoscaling(t *testing.T) {
	r := render(t, valuesOf(t, "everything"))
	m := get[*autoscaling.HorizontalPodAutoscaler](t, r, "wp-warmpath").Spec.Metrics[0]
	if m.Pods.Metric.Name != "warmpath_inflight" || m.Pods.Target.AverageValue.Value() != 200 {
		t.Errorf("%+v", m.Pods)
	}
	e := get[*autoscaling.HorizontalPodAutoscaler](t, r, "wp-warmpath-vllm").Spec.Metrics[0].External
	if e.Metric.Name != "warmpath_pending_tokens" || e.Target.AverageValue.Value() != 16384 {
		t.Errorf("%+v", e)
	}
	cpu := valuesOf(t, "mock")
	cpu["autoscaling"] = map[string]any{"enabled": true}
	m = get[*autoscaling.HorizontalPodAutoscaler](t, render(t, cpu), "wp-warmpath").Spec.Metrics[0]
	if m.Resource == nil || m.Resource.Name != "cpu" || *m.Resource.Target.AverageUtilization != 70 {
		t.Errorf("%+v", m)
	}
	for _, name := range []string{"warmpath_inflight", "warmpath_pending_tokens"} {
		if !strings.Contains(read(t, chartDir+"/README.md"), name) {
			t.Errorf("README.md has no rule for %s", name)
		}
	}
}

func TestHelmTestAsksForTheModel(t *testing.T) {
	pod := get[*core.Pod](t, render(t, valuesOf(t, "everything")), "wp-warmpath-test")
	if pod.Annotations["helm.sh/hook"] != "test" || !strings.Contains(fmtArgs(pod.Spec.Containers[0]), "-endpoint=http://wp-warmpath:8080 -model=Qwen2.5-72B-Instruct") {
		t.Errorf("%v %s", pod.Annotations, fmtArgs(pod.Spec.Containers[0]))
	}
	if r := render(t, valuesOf(t, "minimal")); r.objects["Pod wp-warmpath-test"] != nil {
		t.Error("a test that cannot know a model")
	}
}

// TestHelmTestIsLetInAndTrusts looks at what stands between the pod and the gateway.
func TestHelmTestIsLetInAndTrusts(t *testing.T) {
	pod := get[*core.Pod](t, render(t, valuesOf(t, "tls")), "wp-warmpath-test")
	c := pod.Spec.Containers[0]
	if len(c.Env) != 1 || c.Env[0].Name != "SSL_CERT_FILE" || c.Env[0].Value != c.VolumeMounts[0].MountPath+"/tls.crt" {
		t.Errorf("it trusts %+v", c.Env)
	}
	if items := pod.Spec.Volumes[0].Secret.Items; len(items) != 1 || items[0].Key != "tls.crt" {
		t.Errorf("it sees %+v of the secret", items)
	}
	named := valuesOf(t, "tls")
	named["test"] = map[string]any{"endpoint": "https://llm.example.com"}
	c = get[*core.Pod](t, render(t, named), "wp-warmpath-test").Spec.Containers[0]
	if !slices.Contains(c.Args, "-endpoint=https://llm.example.com") || len(c.VolumeMounts) > 0 {
		t.Errorf("%s, %+v", fmtArgs(c), c.VolumeMounts)
	}
	r := render(t, valuesOf(t, "everything"))
	allowed := get[*networking.NetworkPolicy](t, r, "wp-warmpath").Spec.Ingress[0].From
	if !slices.ContainsFunc(allowed, func(p networking.NetworkPolicyPeer) bool {
		return p.PodSelector != nil && labels.SelectorFromSet(p.PodSelector.MatchLabels).Matches(labels.Set(get[*core.Pod](t, r, "wp-warmpath-test").Labels))
	}) {
		t.Errorf("the policy lets in %+v", allowed)
	}
}

// TestAnotherVersionOfTheChartRestartsNothing renders a later chart with the same
// images: no pod may differ, for an engine that restarts has lost its cache.
func TestAnotherVersionOfTheChartRestartsNothing(t *testing.T) {
	values := valuesOf(t, "everything")
	later := load(t)
	later.Metadata.Version, later.Metadata.AppVersion = "9.8.7", "9.8.7"
	files, err := renderChart(t, later, release, values)
	if err != nil {
		t.Fatal(err)
	}
	now, then := render(t, values).pods(), decode(t, files).pods()
	delete(now, "Pod wp-warmpath-test")
	for key, pod := range now {
		if !reflect.DeepEqual(pod, then[key]) {
			t.Errorf("%s changes: labels %v, then %v", key, pod.Labels, then[key].Labels)
		}
	}
}

// TestAnswersHaveTheTimeThatIsSaid compares an engine's drain with its pod's.
func TestAnswersHaveTheTimeThatIsSaid(t *testing.T) {
	for _, grace := range []int64{30, 180, 3600} {
		values := valuesOf(t, "tls")
		values["vllm"].(map[string]any)["terminationGracePeriodSeconds"] = grace
		pod := get[*apps.StatefulSet](t, render(t, values), "wp-warmpath-vllm").Spec.Template.Spec
		c := pod.Containers[0]
		drain, wait := int64(0), int64(0)
		for _, arg := range c.Args {
			_, _ = fmt.Sscanf(arg, "--shutdown-timeout=%d", &drain)
		}
		_, _ = fmt.Sscanf(c.Lifecycle.PreStop.Exec.Command[1], "%d", &wait)
		if *pod.TerminationGracePeriodSeconds != grace || drain < 1 || wait+drain+5 > grace || drain < grace-wait-20 {
			t.Errorf("of %d s %d are waited and answers have %d", grace, wait, drain)
		}
	}
}

// TestValuesArriveAsTheyAre has names that YAML takes for something else, and numbers
// that a template may write as 1e+06.
func TestValuesArriveAsTheyAre(t *testing.T) {
	values := parse(t, `
ingress: {enabled: true, host: "*.example.com", className: "1", tlsSecretName: "123"}
auth: {keysSecret: {name: "123", key: "456"}, saltSecret: {name: "0x1f", key: "1.5"}}
tls: {enabled: true, secretName: "777"}
redis: {caSecret: {name: "1e3", key: ca.crt}}
gateway: {priorityClassName: "5", extraVolumes: [{name: more, configMap: {name: more}}], extraVolumeMounts: [{name: more, mountPath: /more}]}
vllm: {enabled: true, model: a/b, maxModelLen: 1048576, maxNumBatchedTokens: 2097152, autoscaling: {enabled: true, targetPendingTokens: 3000000},
  extraVolumes: [{name: hf, emptyDir: {}}], extraVolumeMounts: [{name: hf, mountPath: /root/.cache/huggingface}]}
mock: {enabled: true, model: "7"}
`)
	r := render(t, values)
	if host := get[*networking.Ingress](t, r, "wp-warmpath").Spec.Rules[0].Host; host != "*.example.com" {
		t.Errorf("host %q", host)
	}
	engine := get[*apps.StatefulSet](t, r, "wp-warmpath-vllm").Spec.Template.Spec
	if c := engine.Containers[0]; !slices.Contains(c.Args, "--max-model-len=1048576") || !slices.Contains(c.Args, "--max-num-batched-tokens=2097152") || c.VolumeMounts[1].Name != "hf" || engine.Volumes[1].Name != "hf" {
		t.Errorf("%s, %+v", fmtArgs(c), c.VolumeMounts)
	}
	if v := get[*autoscaling.HorizontalPodAutoscaler](t, r, "wp-warmpath-vllm").Spec.Metrics[0].External.Target.AverageValue.Value(); v != 3000000 {
		t.Errorf("%d tokens", v)
	}
	pod := get[*apps.Deployment](t, r, "wp-warmpath").Spec.Template.Spec
	if last := pod.Volumes[len(pod.Volumes)-1]; last.Name != "more" || pod.Containers[0].VolumeMounts[len(pod.Volumes)-1].MountPath != "/more" {
		t.Errorf("%+v", pod.Volumes)
	}
}

// TestNamesAreValidWhateverTheRelease renders with the shortest, the longest and the
// strangest names that Helm takes for a release.
func TestNamesAreValidWhateverTheRelease(t *testing.T) {
	name := regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	for _, release := range []string{"a", "warmpath", "my.release", strings.Repeat("a", 39) + "-" + strings.Repeat("b", 13)} {
		files, err := renderChart(t, load(t), release, valuesOf(t, "everything"))
		if err != nil {
			t.Fatal(err)
		}
		for key, o := range decode(t, files).objects {
			if !name.MatchString(o.GetName()) || len(o.GetName()) > 52 && strings.HasPrefix(key, "StatefulSet") {
				t.Errorf("%s: %s", release, key)
			}
		}
	}
	files, err := renderChart(t, load(t), "warmpath", valuesOf(t, "mock"))
	if r := decode(t, files); err != nil || r.objects["Service warmpath"] == nil {
		t.Errorf("%v, %q", err, slices.Sorted(maps.Keys(r.objects)))
	}
}

func TestNotesSayWhatIsNext(t *testing.T) {
	for name, want := range map[string][]string{
		"mock":    {"2 gateways", "kubernetes://llm/wp-warmpath-mock:8000", "rollout status deployment/wp-warmpath", "helm -n llm test wp", "everyone who reaches the Service is let in"},
		"minimal": {"1 gateway.", "http://10.0.0.1:8000"},
		"no-vllm": {"rbac.create is false"},
	} {
		notes := render(t, valuesOf(t, name)).notes
		for _, w := range want {
			if !strings.Contains(notes, w) {
				t.Errorf("%s: %q is not in\n%s", name, w, notes)
			}
		}
	}
	lonely := parse(t, "mock: {enabled: true}\nredis: {enabled: false}")
	if notes := render(t, lonely).notes; !strings.Contains(notes, "several gateways and no Redis") {
		t.Errorf("%s", notes)
	}
}

func TestBadValuesAreRefused(t *testing.T) {
	for values, want := range map[string]string{
		"{}":                                                               "no replicas",
		"vllm: {enabled: true}":                                            "vllm.enabled needs vllm.model",
		"gatway: {}":                                                       "gatway",
		"gateway: {replicas: 3}":                                           "replicas",
		"gateway: {replicaCount: -1}":                                      "replicaCount",
		"gateway: {replicaCount: two}":                                     "replicaCount",
		"gateway: {policy: fastest}":                                       "policy",
		"gateway: {usage: guess}":                                          "usage",
		"gateway: {drainDelaySeconds: 1}":                                  "drainDelaySeconds",
		"gateway: {drainTimeoutSeconds: 1m}":                               "drainTimeoutSeconds",
		"gateway: {goMemLimit: 2G}":                                        "goMemLimit",
		"replicas: {urls: [\"10.0.0.1:8000\"]}":                            "urls",
		"replicas: {urls: http://10.0.0.1}":                                "urls",
		"replicas: {services: [{name: vllm}]}":                             "port",
		"replicas: {services: [{name: a, port: 99999}]}":                   "port",
		"discovery: {mode: consul}":                                        "mode",
		"image: {tag: \"a b\"}":                                            "tag",
		"image: {digest: abc}":                                             "digest",
		"redis: {url: \"http://redis\"}":                                   "url",
		"redis: {maxMemory: 256Mi}":                                        "maxMemory",
		"tls: {enabled: true}":                                             "secretName",
		"httpRoute: {enabled: true}":                                       "parentRefs",
		"vllm: {gpuMemoryUtilization: 1.5}":                                "gpuMemoryUtilization",
		"vllm: {tensorParallelSize: 0}":                                    "tensorParallelSize",
		"modelCache: {enabled: true}":                                      "repository",
		"modelCache: {expectedDigest: sha256-1}":                           "expectedDigest",
		"modelCache: {nodeLocalPath: models}":                              "nodeLocalPath",
		"modelCache: {evictionPolicy: fifo}":                               "evictionPolicy",
		"autoscaling: {metric: rps}":                                       "metric",
		"auth: {keysSecret: keys}":                                         "keysSecret",
		"mock: {enabled: true}\ngateway: {config: {listen: \":1\"}}":       "the pod's ports",
		"mock: {enabled: true}\ngateway: {config: {drain_timeout: 9m}}":    "gateway.drainTimeoutSeconds",
		"mock: {enabled: true}\ngateway: {config: {admin_token: a}}":       "auth.adminTokenSecret",
		"mock: {enabled: true}\ngateway: {config: {redis: {password: a}}}": "redis.passwordSecret",
		"vllm: {terminationGracePeriodSeconds: 20}":                        "terminationGracePeriodSeconds",
		"service: {port: 0}":                                               "port",
		"mock: {enabled: true}\ndiscovery: {namespace: other}":             "discovery.namespace",
		"vllm: {enabled: true, model: a}\nmodelCache: {enabled: true, repository: s3://a/b, expectedDigest: \"sha256:" + strings.Repeat("0", 64) + "\"}": "exclude each other",
	} {
		if _, err := renderErr(t, parse(t, values)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error does not name %s: %v", values, want, err)
		}
	}
}

// TestReadmeListsEveryValue compares README.md's table with values.yaml.
func TestReadmeListsEveryValue(t *testing.T) {
	want := map[string]string{}
	flatten("", parse(t, read(t, chartDir+"/values.yaml")), want)
	rows := regexp.MustCompile("(?m)^\\| `([A-Za-z0-9.]+)` \\| (?:`(.*?)`)? ?\\| (.+) \\|$").FindAllStringSubmatch(read(t, chartDir+"/README.md"), -1)
	for _, row := range rows {
		value, known := want[row[1]]
		delete(want, row[1])
		if !known {
			t.Errorf("README.md has %s, which is no value", row[1])
		} else if value != row[2] {
			t.Errorf("README.md says %s is %q, values.yaml %q", row[1], row[2], value)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		t.Errorf("README.md lacks | `%s` | `%s` | … |", key, want[key])
	}
}

// flatten lists the ends of a tree. Resources, security contexts, annotations and
// labels are one value each.
func flatten(path string, v any, into map[string]string) {
	m, ok := v.(map[string]any)
	whole := regexp.MustCompile(`(?i)(resources|securityContext|annotations|labels)$`).MatchString(path)
	if !ok || len(m) == 0 || whole {
		text := ""
		if s, ok := v.(string); ok {
			text = s
		} else if raw, err := json.Marshal(v); err == nil {
			text = string(raw)
		}
		into[path] = text
		return
	}
	for key, value := range m {
		flatten(strings.TrimPrefix(path+"."+key, "."), value, into)
	}
}

// sources returns the replicas' sources in the gateway's file.
func sources(t *testing.T, r rendered) []string {
	t.Helper()
	var file struct {
		Replica struct{ URLs []string }
	}
	if err := yaml.Unmarshal([]byte(get[*core.ConfigMap](t, r, "wp-warmpath").Data["warmpath.yaml"]), &file); err != nil {
		t.Fatal(err)
	}
	return file.Replica.URLs
}

// TestImageHasTheCommands looks in the Dockerfile for every command that a pod runs
// from it.
func TestImageHasTheCommands(t *testing.T) {
	docker := read(t, "../../Dockerfile")
	ran := map[string]bool{}
	for _, pod := range render(t, valuesOf(t, "everything")).pods() {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if strings.HasPrefix(c.Image, "warmpath/") {
				ran[c.Command[0]] = true
			}
		}
	}
	if len(ran) != 4 {
		t.Errorf("pods run %v", ran)
	}
	for command := range ran {
		if !strings.Contains(docker, fmt.Sprintf("./cmd%s", command)) && !strings.Contains(docker, "./cmd/...") {
			t.Errorf("the image has no %s", command)
		}
	}
}
