package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/openai"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/upstream"
)

// This file is what becomes of an attempt of which nothing has reached the client:
// whether another replica is asked, and what the client is told if none is.

// turnedAway is an answer that is not passed on, since another replica is asked.
type turnedAway struct {
	status     int
	retryAfter time.Duration
	misfit     bool // it does not fit the head that the client has got already: none is asked
}

// Error says what the answer was.
func (e *turnedAway) Error() string {
	return fmt.Sprintf("the replica answered with status %d", e.status)
}

// turnsAway reports whether an answer's status speaks of the replica and not of
// what it was asked.
func turnsAway(status int) bool { return isBusy(status) || isFault(status) }

// isBusy reports whether a status asks to be sent less.
func isBusy(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
}

// isFault reports whether a status is the replica's own failure. Not to know how to
// do what is asked is none.
func isFault(status int) bool {
	return status >= 500 && status != http.StatusServiceUnavailable && status != http.StatusNotImplemented
}

// current returns the model as it is served now: replicas may have come since the
// request did.
func (x *exchange) current() *replica.Model {
	set := x.p.pool.Set()
	if x.model.Index == 0 {
		return set.Any()
	}
	if m := set.Model(x.model.Name); m != nil {
		return m
	}
	return x.model
}

// elsewhere reports whether there is a replica left to send the request to.
func (x *exchange) elsewhere() bool {
	return slices.ContainsFunc(x.current().Replicas, func(r *replica.Replica) bool {
		return (r.Ready() || x.desperate && r.LastResort()) && r != x.lease.Replica() && !slices.Contains(x.req.Tried, r)
	})
}

// mayMove reports whether the request has an attempt left, and somewhere to go.
func (x *exchange) mayMove() bool {
	return x.attempts < x.p.cfg.Attempts && time.Since(x.arrived) < x.p.cfg.RetryTime && x.elsewhere()
}

// another reports whether to make one more attempt, and takes it out of the budget
// of all requests.
func (x *exchange) another() bool { return x.mayMove() && x.p.budget.take() }

// again ends an attempt that failed before anything of it reached the client, and
// reports whether to make another. If not, the client has been told.
func (x *exchange) again(err error) bool {
	rep := x.lease.Replica()
	away := (*turnedAway)(nil)
	switch {
	case x.r.Context().Err() != nil:
		x.gone()
		x.finish(router.Canceled)
		return false
	case errors.Is(err, errStopping):
		x.finish(router.Canceled)
		x.refuse("stopping", &openai.Error{Status: http.StatusServiceUnavailable, Type: "service_unavailable", Code: "stopping", RetryAfter: time.Second, Message: "the gateway is stopping"})
		return false
	case errors.Is(err, upstream.ErrRequest):
		x.finish(router.Rejected)
		x.refuse("bad_request", &openai.Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "invalid_request", Message: "the request's path, query or headers cannot be sent on"})
		return false
	case errors.As(err, &away): // the budgets have paid already
		x.turnAway(away)
		if away.misfit {
			x.refuse("unreachable", &openai.Error{Status: http.StatusBadGateway, Type: "api_error", Code: "replica_lost", Message: away.Error()})
			return false
		}
	default:
		x.err = err
		fault := x.faultOf(err)
		more := x.another()
		x.fail(fault)
		if !more {
			x.p.log.Warn("replica did not answer", "replica", rep.ID, "request_id", x.id, "err", err)
			reason := "unreachable"
			if x.desperate {
				reason = "not_ready"
			}
			x.refuse(reason, x.unanswered(fault))
			x.err = err
			return false
		}
		switch fault {
		case replica.Refused:
			x.target.RetriedUnreachable.Inc()
		case replica.Late:
			x.target.RetriedLate.Inc()
		default:
			x.target.RetriedFailed.Inc()
		}
	}
	x.retried()
	x.req.Tried = append(x.req.Tried, rep)
	x.model = x.current()
	x.req.Model = x.model
	return true
}

// turnAway ends an attempt whose answer is not passed on.
func (x *exchange) turnAway(away *turnedAway) {
	x.meter.retryAfter = away.retryAfter
	switch {
	case isBusy(away.status):
		x.target.RetriedBusy.Inc()
		x.finish(router.Busy)
	case away.status == http.StatusOK && !away.misfit:
		x.target.RetriedFailed.Inc()
		x.fail(replica.Aborted)
	case isFault(away.status):
		x.target.RetriedFailed.Inc()
		x.fail(replica.Errored)
	default:
		x.finish(router.Rejected)
	}
	x.meter.retryAfter = 0
}

// faultOf says what an attempt's error shows of its replica.
func (x *exchange) faultOf(err error) replica.Fault {
	var op *net.OpError
	switch {
	case errors.Is(err, errLate), errors.Is(err, errLost):
		return replica.Late
	case errors.Is(err, errReported):
		return replica.Aborted
	case x.connected == 0 && errors.As(err, &op) && op.Op == "dial":
		return replica.Refused
	case x.attempt.begun.Load():
		return replica.CutOff
	}
	return replica.Reset
}

// unanswered is what the client gets when no attempt is left. It says not to try
// again at once what has taken its whole time already.
func (x *exchange) unanswered(fault replica.Fault) *openai.Error {
	switch {
	case fault == replica.Late:
		return &openai.Error{Status: http.StatusGatewayTimeout, Type: "api_error", Code: "replica_timeout", Message: "the replica did not answer in time", Final: true}
	case x.desperate:
		return unavailable("no replica that serves '" + x.model.Name + "' is ready")
	}
	return &openai.Error{Status: http.StatusBadGateway, Type: "api_error", Code: "replica_unreachable", Message: "the replica did not answer"}
}

// fail ends the lease of an attempt in which the replica showed a fault.
func (x *exchange) fail(f replica.Fault) {
	x.lease.Replica().Failed(f)
	x.target.Faults[f].Inc()
	x.finish(router.Failed)
}

// gone notes that the client left before there was an answer.
func (x *exchange) gone() {
	if x.status == 0 {
		x.status = statusClientGone
	}
}

// budget bounds the attempts of all requests beyond their first, as a share of the
// requests. When a fleet is failing, attempts that are made again are what keeps it
// down.
type budget struct {
	share float64 // 0 for no bound

	mu   sync.Mutex
	left float64
}

// budgetSize is how many attempts the budget saves up: as many as there may be
// requests at a replica when it dies.
const budgetSize = 500

func newBudget(share float64) *budget { return &budget{share: share, left: budgetSize} }

// earn pays in for one request that has come to a replica.
func (b *budget) earn() {
	if b.share == 0 {
		return
	}
	b.mu.Lock()
	b.left = min(budgetSize, b.left+b.share)
	b.mu.Unlock()
}

// take reports whether there is another attempt to be had, and takes it.
func (b *budget) take() bool {
	if b.share == 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// remaining returns how many attempts are left.
func (b *budget) remaining() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left
}
