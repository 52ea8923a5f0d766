package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/lab"
)

// point is a workload and the settings that a sweep varies.
type point struct {
	Workload      string  `json:"workload"`
	Load          float64 `json:"load"`
	Gateways      int     `json:"gateways"`
	LoadLag       lag     `json:"load_lag"`
	PrefixLag     lag     `json:"prefix_lag"`
	TokensWrong   float64 `json:"tokens_wrong"`
	CapacityWrong float64 `json:"capacity_wrong"`
}

// axis is one setting of points.
type axis struct {
	name   string // short, as the head of a column
	label  string // with its unit, as the label of a diagram's axis
	values func(s *sweep) int
	text   func(p *point) string
	place  func(p *point) float64 // on a scale of numbers; nil where values stand side by side
}

func axes() []axis {
	number := func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
	return []axis{
		{
			"load", "load (times the workload's rate)", func(s *sweep) int { return len(s.loads) },
			func(p *point) string { return number(p.Load) }, func(p *point) float64 { return p.Load },
		},
		{
			"gateways", "gateways (count)", func(s *sweep) int { return len(s.gateways) },
			func(p *point) string { return strconv.Itoa(p.Gateways) }, nil,
		},
		{
			"load lag", "lag of load between gateways (time)", func(s *sweep) int { return len(s.loadLags) },
			func(p *point) string { return p.LoadLag.String() }, nil,
		},
		{
			"prefix lag", "lag of prefixes between gateways (time)", func(s *sweep) int { return len(s.prefixLags) },
			func(p *point) string { return p.PrefixLag.String() }, nil,
		},
		{
			"tokens wrong", "tokens estimated (times the truth)", func(s *sweep) int { return len(s.tokensWrong) },
			func(p *point) string { return number(p.TokensWrong) }, nil,
		},
		{
			"capacity wrong", "capacity told (times the truth)", func(s *sweep) int { return len(s.capacityWrong) },
			func(p *point) string { return number(p.CapacityWrong) }, nil,
		},
	}
}

// swept returns the axes along which the sweep has several values.
func (s *sweep) swept() []axis {
	return slices.DeleteFunc(axes(), func(a axis) bool { return a.values(s) < 2 })
}

// axisNamed returns the axis of that name.
func axisNamed(name string) axis {
	all := axes()
	return all[slices.IndexFunc(all, func(a axis) bool { return a.name == name })]
}

// sweep is what to simulate: each policy at each point with each seed.
type sweep struct {
	workloads                  func(load float64) ([]lab.Workload, error)
	policies                   []string
	loads                      []float64
	gateways                   []int
	loadLags, prefixLags       []lag
	tokensWrong, capacityWrong []float64
	seed                       uint64 // the first
	seeds                      int
	replicas                   int    // 0 is what the workload is meant for
	engine                     string // "" is what the workload is meant for
	slo                        time.Duration
}

// row is one policy at one point with one seed.
type row struct {
	point
	Seed uint64 `json:"seed"`
	lab.Summary
}

// cell is one policy at one point.
type cell struct {
	point
	rows []row // by seed
	mean lab.Summary
}

// task is one simulation.
type task struct {
	work     lab.Workload
	scenario lab.Scenario
	point    point
	slo      time.Duration
}

func (t *task) run() (row, error) {
	seed := t.scenario.Seed
	r, err := lab.Simulate(t.scenario, t.work.Make(rand.New(rand.NewPCG(seed, 1))))
	if err != nil {
		return row{}, fmt.Errorf("%s, %s: %w", t.point.Workload, t.scenario.Policy, err)
	}
	return row{point: t.point, Seed: seed, Summary: r.Summarize(t.slo)}, nil
}

// tasks returns the simulations, those that differ in the seed alone side by side.
func (s *sweep) tasks() ([]task, error) {
	byLoad := make([][]lab.Workload, len(s.loads))
	for i, load := range s.loads {
		works, err := s.workloads(load)
		if err != nil {
			return nil, err
		}
		byLoad[i] = works
	}
	var out []task
	for w := range byLoad[0] {
		for i, load := range s.loads {
			work := byLoad[i][w]
			if s.replicas > 0 {
				work.Replicas = s.replicas
			}
			if s.engine != "" {
				work.Engine = s.engine
			}
			engine, ok := lab.Engines()[work.Engine]
			if !ok {
				return nil, noEngine(work.Engine)
			}
			for _, p := range s.points(work.Name, load) {
				for _, policy := range s.policies {
					for n := range s.seeds {
						out = append(out, task{work, lab.Scenario{
							Replicas: work.Replicas, Engine: engine, Policy: policy, Seed: s.seed + uint64(n),
							Wrong: p.TokensWrong, Capacity: p.CapacityWrong, Gateways: p.Gateways,
							LoadLag: time.Duration(p.LoadLag), PrefixLag: time.Duration(p.PrefixLag),
						}, p, s.slo})
					}
				}
			}
		}
	}
	return out, nil
}

// points are the sweep's points of one workload at one load.
func (s *sweep) points(workload string, load float64) []point {
	var out []point
	for _, gateways := range s.gateways {
		for _, loadLag := range s.loadLags {
			for _, prefixLag := range s.prefixLags {
				for _, tokens := range s.tokensWrong {
					for _, capacity := range s.capacityWrong {
						out = append(out, point{workload, load, gateways, loadLag, prefixLag, tokens, capacity})
					}
				}
			}
		}
	}
	return out
}

// run simulates on all cores. The cells are in the order of the sweep's settings,
// whatever ends first.
func (s *sweep) run(name string, progressTo *os.File) ([]cell, error) {
	tasks, err := s.tasks()
	if err != nil {
		return nil, err
	}
	rows, err := runAll(tasks, newProgress(progressTo, name, "simulations", len(tasks)))
	if err != nil {
		return nil, err
	}
	var cells []cell
	for i := 0; i < len(rows); i += s.seeds {
		same := rows[i : i+s.seeds]
		cells = append(cells, cell{point: same[0].point, rows: same, mean: meanOf(same)})
	}
	return cells, nil
}

// runAll runs tasks on GOMAXPROCS workers until one fails. The error is that of the
// first task that failed.
func runAll(tasks []task, bar *progress) ([]row, error) {
	defer bar.end()
	rows, errs := make([]row, len(tasks)), make([]error, len(tasks))
	next, done := make(chan int), make(chan int)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := range next {
				rows[i], errs[i] = tasks[i].run()
				done <- i
			}
		})
	}
	var failed error
	for sent, ended := 0, 0; ended < sent || sent < len(tasks) && failed == nil; {
		offer := next
		if sent == len(tasks) || failed != nil {
			offer = nil
		}
		select {
		case offer <- sent:
			sent++
		case i := <-done:
			ended++
			bar.step(1, 0)
			if errs[i] != nil && failed == nil {
				failed = errs[i]
			}
		}
	}
	close(next)
	workers.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// meanOf returns the mean of each figure.
func meanOf(rows []row) lab.Summary {
	average := func(figure func(*lab.Summary) float64) float64 {
		sum := 0.0
		for i := range rows {
			sum += figure(&rows[i].Summary)
		}
		return sum / float64(len(rows))
	}
	return lab.Summary{
		Policy:     rows[0].Policy,
		Requests:   int(math.Round(average(func(s *lab.Summary) float64 { return float64(s.Requests) }))),
		Mean:       average(func(s *lab.Summary) float64 { return s.Mean }),
		P50:        average(func(s *lab.Summary) float64 { return s.P50 }),
		P95:        average(func(s *lab.Summary) float64 { return s.P95 }),
		P99:        average(func(s *lab.Summary) float64 { return s.P99 }),
		Hit:        average(func(s *lab.Summary) float64 { return s.Hit }),
		Recomputed: uint64(math.Round(average(func(s *lab.Summary) float64 { return float64(s.Recomputed) }))),
		TPOT95:     average(func(s *lab.Summary) float64 { return s.TPOT95 }),
		Imbalance:  average(func(s *lab.Summary) float64 { return s.Imbalance }),
		Throughput: average(func(s *lab.Summary) float64 { return s.Throughput }),
		Slow:       average(func(s *lab.Summary) float64 { return s.Slow }),
	}
}
