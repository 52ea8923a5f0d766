package proxy

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmpath/warmpath/internal/metrics"
	"github.com/warmpath/warmpath/internal/openai"
	"github.com/warmpath/warmpath/internal/replica"
)

// labels counts the series of a registry that have a label of that value.
func labels(t *testing.T, reg *prometheus.Registry, name, value string) (n int) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if l.GetName() == name && (value == "" || l.GetValue() == value) {
					n++
				}
			}
		}
	}
	return n
}

func TestReplicasThatLeftAreForgotten(t *testing.T) {
	reg := prometheus.NewRegistry()
	var tab tables
	tab.init(metrics.New(reg), 100)
	model := &replica.Model{Name: "m", Index: 1}
	stays, leaves := replica.Virtual("stays:80", 0), replica.Virtual("leaves:80", 1)
	both := []*replica.Replica{stays, leaves}
	for _, r := range both {
		tab.target(r, model).TTFT.Observe(1)
	}
	now := time.Now()
	f := func(what string, set []*replica.Replica, after time.Duration, want bool) {
		t.Helper()
		now = now.Add(after)
		tab.sweep(set, now)
		if got := labels(t, reg, "replica", "leaves:80") > 0; got != want {
			t.Errorf("%s: it has series is %v, want %v", what, got, want)
		}
	}
	f("it is there", both, time.Minute, true)
	f("it has left", both[:1], time.Minute, true)
	f("a while ago", both[:1], keepSeries-time.Second, true)
	f("it was back", both, time.Hour, true)
	f("it has left again", both[:1], time.Minute, true)
	f("long ago", both[:1], keepSeries, false)
	if labels(t, reg, "replica", "stays:80") == 0 {
		t.Error("the other's series are gone too")
	}
	tab.target(leaves, model).TTFT.Observe(1)
	f("it is back", both, time.Minute, true)
	again := replica.Virtual("leaves:80", 2)
	tab.target(again, model).TTFT.Observe(1)
	f("another engine has its address", []*replica.Replica{stays, again}, time.Minute, true)
	f("for long", []*replica.Replica{stays, again}, keepSeries, true)
}

// TestASlotsMetricsAreItsReplicas gives a slot to another replica.
func TestASlotsMetricsAreItsReplicas(t *testing.T) {
	reg := prometheus.NewRegistry()
	var tab tables
	tab.init(metrics.New(reg), 100)
	model := &replica.Model{Name: "m", Index: 1}
	old, young := replica.Virtual("old:80", 3), replica.Virtual("young:80", 3)
	was := tab.target(old, model)
	old.Retire()
	is := tab.target(young, model)
	if was == is || tab.target(young, model) != is {
		t.Error("the new replica writes to the old one's series, or resolves its own each time")
	}
	if late := tab.target(old, model); late.Replica != was.Replica || tab.target(young, model) != is {
		t.Error("a request that ends late takes the slot's row")
	}
	now := time.Now()
	tab.sweep([]*replica.Replica{young}, now)
	tab.sweep([]*replica.Replica{young}, now.Add(keepSeries))
	if labels(t, reg, "replica", "old:80") > 0 || labels(t, reg, "replica", "young:80") == 0 {
		t.Error("the wrong series are forgotten")
	}
	if tab.target(young, model) != is {
		t.Error("the new replica's row went with the old one's")
	}
}

func TestModelsHaveBoundedSeries(t *testing.T) {
	reg := prometheus.NewRegistry()
	var tab tables
	tab.init(metrics.New(reg), 5)
	r := replica.Virtual("r:80", 0)
	for i := range 1000 {
		m := &replica.Model{Name: fmt.Sprint("adapter-", i), Index: i + 1}
		tab.target(r, m).TTFT.Observe(1)
		tab.request(m, openai.Chat, 200).Inc()
		tab.request(nil, openai.Chat, 404).Inc()
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, f := range families {
		for _, s := range f.Metric {
			for _, l := range s.Label {
				if l.GetName() == "model" {
					names[l.GetValue()] = true
				}
			}
		}
	}
	if len(names) != 6 || !names["other"] {
		t.Errorf("the models are %v", names)
	}
}
