package admin

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/router"
)

// Decision is one choice of a replica, as /decisions and /explain show it. Times are
// in seconds.
type Decision struct {
	RequestID  string      `json:"request_id,omitempty"`
	At         time.Time   `json:"at"`
	Model      string      `json:"model"`
	Policy     string      `json:"policy"`
	Replica    string      `json:"replica"`
	Reason     string      `json:"reason"`
	Shadow     string      `json:"shadow_replica,omitempty"` // where the shadow policy would have sent it
	Prompt     int         `json:"prompt_tokens"`            // as believed
	Predicted  int         `json:"predicted_tokens"`         // of these, believed to be cached
	Cached     *int        `json:"cached_tokens,omitempty"`  // as the replica reported
	Prefill    float64     `json:"prefill_seconds,omitempty"`
	Expected   float64     `json:"expected_prefill_seconds"`
	State      string      `json:"state"` // planned, under_way, completed, canceled, rejected, busy or failed
	Load       float64     `json:"fleet_load"`
	Weight     float64     `json:"weight"` // on work and evicted
	Slack      float64     `json:"slack_seconds"`
	Of         int         `json:"candidates_in_all"`
	Candidates []Candidate `json:"candidates"` // the cheapest, in the order of cost
}

// Candidate is what a request would have cost on one replica:
// cost = wait + weight·(work + evicted) − credit + decoding + penalty.
type Candidate struct {
	Replica  string  `json:"replica"`
	Chosen   bool    `json:"chosen"`
	Cached   int     `json:"predicted_tokens"`
	InFlight int     `json:"in_flight"`
	Wait     float64 `json:"wait_seconds"`
	Work     float64 `json:"work_seconds"`
	Evicted  float64 `json:"evicted_seconds"`
	Credit   float64 `json:"credit_seconds"`
	Decoding float64 `json:"decoding_seconds"`
	Penalty  float64 `json:"penalty_seconds"`
	Cost     float64 `json:"cost_seconds"`
}

func show(d *router.Decision) Decision {
	v := Decision{
		RequestID: d.Request, At: d.At, Model: d.Model, Policy: router.PolicyName(d.Policy), Replica: d.Chosen.ID, Reason: d.Why.String(),
		Prompt: d.Tokens, Prefill: d.Prefill.Seconds(), Expected: d.Predicted.Seconds(), State: state(d),
		Load: d.Load, Weight: d.Weight, Slack: d.Slack, Of: d.Candidates,
	}
	if d.Shadow != nil {
		v.Shadow = d.Shadow.ID
	}
	if d.Reported {
		v.Cached = &d.Cached
	}
	for _, c := range d.Costs() {
		v.Candidates = append(v.Candidates, Candidate{
			Replica: c.Replica.ID, Chosen: c.Replica == d.Chosen, Cached: c.Cached, InFlight: c.InFlight, Wait: c.Wait, Work: c.Work,
			Evicted: c.Evicted, Credit: c.Credit, Decoding: c.Decoding, Penalty: c.Penalty, Cost: c.Total,
		})
		if c.Replica == d.Chosen {
			v.Predicted = c.Cached
		}
	}
	return v
}

func state(d *router.Decision) string {
	switch {
	case d.ID == 0:
		return "planned"
	case !d.Over:
		return "under_way"
	}
	return [...]string{router.Completed: "completed", router.Canceled: "canceled", router.Rejected: "rejected", router.Busy: "busy", router.Failed: "failed"}[d.End]
}

// lastDecisions returns the last n decisions, those of a request if it is named.
func (a *Admin) lastDecisions(n int, request string) []Decision {
	list := []Decision{}
	among := n
	if request != "" {
		among = math.MaxInt // all that are kept
	}
	for _, d := range a.Router.Decisions(among) {
		if (request == "" || d.Request == request) && len(list) < n {
			list = append(list, show(&d))
		}
	}
	return list
}

// decisions is GET /decisions?n=100&request_id=…, the last n or those of a request.
func (a *Admin) decisions(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.URL.Query().Get("n"))
	if err != nil || n < 1 {
		n = 100
	}
	list := a.lastDecisions(n, r.URL.Query().Get("request_id"))
	if wantsJSON(r) {
		answer(w, map[string]any{"decisions": list})
		return
	}
	a.render(w, "decisions", list)
}

// explain is POST /explain?path=/v1/chat/completions&policy=…&key=… with a request as
// a client would send it; a form sends it as its field "request", and these as others.
func (a *Admin) explain(w http.ResponseWriter, r *http.Request) {
	form := strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded")
	if form {
		r = unform(w, r)
	}
	path := r.URL.Query().Get("path")
	if path == "" {
		path = "/v1/chat/completions"
	}
	d, err := a.Explain(r, path)
	switch {
	case form && wantsJSON(r), !form:
		if err != nil {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
			return
		}
		answer(w, show(d))
	default:
		v := explained{}
		if err != nil {
			v.Error = err.Error()
			w.WriteHeader(http.StatusUnprocessableEntity)
		} else {
			v.Decisions = []Decision{show(d)}
		}
		a.render(w, "explain", v)
	}
}

// unform returns the request that a form stands for.
func unform(w http.ResponseWriter, r *http.Request) *http.Request {
	r.Body = http.MaxBytesReader(w, r.Body, 8<<20)
	text := r.PostFormValue("request")
	asked, query := r.Clone(r.Context()), r.URL.Query()
	for _, name := range [...]string{"path", "policy", "key"} {
		if v := r.PostForm.Get(name); v != "" {
			query.Set(name, v)
		}
	}
	asked.URL.RawQuery = query.Encode()
	asked.Body = readCloser(text)
	return asked
}

// explained is what the page of /explain shows.
type explained struct {
	Error     string
	Decisions []Decision
}
