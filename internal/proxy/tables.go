package proxy

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmpath/warmpath/internal/auth"
	"github.com/warmpath/warmpath/internal/metrics"
	"github.com/warmpath/warmpath/internal/openai"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
)

// tables are the children of metrics by small numbers instead of label strings.
// A reader takes no lock; what is not there yet is made under one, once.
type tables struct {
	metrics   *metrics.Metrics
	decisions map[string][]prometheus.Counter // by policy, then reason; complete from the start
	faults    []string                        // by their numbers
	limit     int                             // of models that have series of their own

	mu       sync.Mutex
	models   map[string]bool             // that have series of their own; guarded by mu
	left     map[string]time.Time        // when replicas that have left were first missed, by id; guarded by mu
	targets  table[targets]              // by slot
	requests table[[]prometheus.Counter] // by model, then endpoint and status
	keys     table[[]prometheus.Counter] // by a key's index, then class of status
	replicas map[string]*metrics.Replica // by id; guarded by mu
}

// targets are the metrics of the replica that has a slot.
type targets struct {
	of      *replica.Replica
	byModel []*metrics.Target
}

type table[T any] struct{ rows atomic.Pointer[[]T] }

func (t *table[T]) row(i int) (row T) {
	if rows := t.rows.Load(); rows != nil && i < len(*rows) {
		return (*rows)[i]
	}
	return row
}

// set replaces a row, in a copy. The caller holds the lock.
func (t *table[T]) set(i int, row T) {
	var rows []T
	if old := t.rows.Load(); old != nil {
		rows = append(rows, *old...)
	}
	for len(rows) <= i {
		var zero T
		rows = append(rows, zero)
	}
	rows[i] = row
	t.rows.Store(&rows)
}

func (t *tables) init(m *metrics.Metrics, limit int) {
	t.metrics, t.limit = m, limit
	t.decisions, t.models = map[string][]prometheus.Counter{}, map[string]bool{}
	t.left, t.replicas = map[string]time.Time{}, map[string]*metrics.Replica{}
	for _, f := range replica.Faults() {
		t.faults = append(t.faults, f.String())
	}
	for _, policy := range router.Policies() {
		for _, why := range router.Reasons() {
			t.decisions[policy] = append(t.decisions[policy], m.Decision(policy, why.String()))
		}
	}
}

func (t *tables) decision(policy string, why router.Reason) prometheus.Counter {
	return t.decisions[policy][why]
}

// target returns the metrics of a model on a replica.
func (t *tables) target(r *replica.Replica, m *replica.Model) *metrics.Target {
	if row := t.targets.row(r.Slot); row.of == r && m.Index < len(row.byModel) && row.byModel[m.Index] != nil {
		return row.byModel[m.Index]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.replicas[r.ID]
	if own == nil {
		own = t.metrics.Replica(r.ID, t.faults)
		t.replicas[r.ID] = own
	}
	row := targets{of: r}
	if old := t.targets.row(r.Slot); old.of == r {
		row.byModel = append(row.byModel, old.byModel...)
	}
	for len(row.byModel) <= m.Index {
		row.byModel = append(row.byModel, nil)
	}
	if row.byModel[m.Index] == nil {
		row.byModel[m.Index] = t.metrics.Target(own, r.ID, t.label(m))
		if !r.Gone() { // else the slot may be another's
			t.targets.set(r.Slot, row)
		}
	}
	return row.byModel[m.Index]
}

// label is the model's name for metrics: the first so many models that are asked for
// have their own. The caller holds the lock.
func (t *tables) label(m *replica.Model) string {
	if m == nil || m.Name == "" || !t.models[m.Name] && len(t.models) >= t.limit {
		return "other"
	}
	t.models[m.Name] = true
	return m.Name
}

// maxStatus is above every HTTP status.
const maxStatus = 600

// request returns the counter of requests that ended so. Models that no replica
// serves share one: a client cannot make series.
func (t *tables) request(m *replica.Model, endpoint openai.Endpoint, status int) prometheus.Counter {
	model := 0
	if m != nil {
		model = m.Index
	}
	if status < 0 || status >= maxStatus {
		status = 0
	}
	column := int(endpoint)*maxStatus + status
	if row := t.requests.row(model); column < len(row) && row[column] != nil {
		return row[column]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	row := append([]prometheus.Counter(nil), t.requests.row(model)...)
	for len(row) <= column {
		row = append(row, nil)
	}
	if row[column] == nil {
		row[column] = t.metrics.Requests(t.label(m), endpoint.String(), strconv.Itoa(status))
		t.requests.set(model, row)
	}
	return row[column]
}

// key returns the counter of requests with an API key that ended so: in a status
// of that hundred.
func (t *tables) key(k *auth.Key, status int) prometheus.Counter {
	class := status / 100
	if class < 0 || class >= maxStatus/100 {
		class = 0
	}
	if row := t.keys.row(k.Index()); row != nil {
		return row[class]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if row := t.keys.row(k.Index()); row != nil {
		return row[class]
	}
	name := k.Name
	if k.Index() == 0 {
		name = auth.OtherName
	}
	row := make([]prometheus.Counter, maxStatus/100)
	for i := range row {
		row[i] = t.metrics.KeyRequests(name, strconv.Itoa(i)+"xx")
	}
	t.keys.set(k.Index(), row)
	return row[class]
}
