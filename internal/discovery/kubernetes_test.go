package discovery

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// apiServer speaks as much of an API server as lists and watches of one Service's
// EndpointSlices take. Anything else that it is asked is an error: a Role would
// forbid it.
type apiServer struct {
	*httptest.Server
	t   *testing.T
	old bool // it does not know how to send a list as a watch

	mu       sync.Mutex
	slices   map[string]*discoveryv1.EndpointSlice
	events   []event
	version  int
	expired  int // versions up to this one are not remembered
	news     chan struct{}
	lists    int
	watches  int
	forbid   bool
	abort    bool          // connections break before an answer
	silent   bool          // nothing is answered
	end      chan struct{} // closed to end all watches
	finalise string        // what a watch ends with
}

type event struct {
	version int
	kind    watch.EventType
	slice   *discoveryv1.EndpointSlice
}

func newAPIServer(t *testing.T) *apiServer {
	a := &apiServer{t: t, slices: map[string]*discoveryv1.EndpointSlice{}, version: 100, news: make(chan struct{}), end: make(chan struct{})}
	a.Server = httptest.NewServer(a)
	t.Cleanup(func() {
		a.endWatches("")
		a.Close()
	})
	return a
}

func (a *apiServer) place() string { return "kubernetes://ns/vllm:http?api=" + a.URL }

func (a *apiServer) changed(kind watch.EventType, s *discoveryv1.EndpointSlice) {
	a.version++
	s = s.DeepCopy()
	s.ResourceVersion = strconv.Itoa(a.version)
	a.events = append(a.events, event{a.version, kind, s})
	if kind == watch.Deleted {
		delete(a.slices, s.Name)
	} else {
		a.slices[s.Name] = s
	}
	close(a.news)
	a.news = make(chan struct{})
}

// put makes or changes a slice.
func (a *apiServer) put(s *discoveryv1.EndpointSlice) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kind := watch.Added
	if a.slices[s.Name] != nil {
		kind = watch.Modified
	}
	a.changed(kind, s)
}

func (a *apiServer) remove(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.changed(watch.Deleted, a.slices[name])
}

// endWatches ends all watches, the last thing they say being an event.
func (a *apiServer) endWatches(last string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.finalise = last
	close(a.end)
	a.end = make(chan struct{})
}

// forget makes the server not remember what happened before.
func (a *apiServer) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	a.expired = a.version
	a.events = nil
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if r.Method != http.MethodGet || r.URL.Path != "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices" || q.Get("labelSelector") != "kubernetes.io/service-name=vllm" {
		a.t.Errorf("%s %s is more than a Role would allow", r.Method, r.URL)
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.abort:
		panic(http.ErrAbortHandler)
	case a.silent:
		a.mu.Unlock()
		<-r.Context().Done()
		a.mu.Lock()
	case a.forbid:
		refuse(w, 403, metav1.StatusReasonForbidden)
	case q.Get("watch") == "":
		a.lists++
		list := discoveryv1.EndpointSliceList{TypeMeta: typeOf("EndpointSliceList")}
		list.ResourceVersion = strconv.Itoa(a.version)
		for _, s := range a.slices {
			list.Items = append(list.Items, *s)
		}
		_ = json.NewEncoder(w).Encode(list)
	case a.old && q.Get("sendInitialEvents") != "":
		refuse(w, 422, metav1.StatusReasonInvalid)
	case from > 0 && from < a.expired:
		refuse(w, 410, metav1.StatusReasonExpired)
	default:
		a.watches++
		a.watch(w, r, from, q.Get("sendInitialEvents") == "true")
	}
}

func typeOf(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: kind}
}

func status(code int32, reason metav1.StatusReason) *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: code, Reason: reason, Message: "as the test says"}
}

func refuse(w http.ResponseWriter, code int32, reason metav1.StatusReason) {
	w.WriteHeader(int(code))
	_ = json.NewEncoder(w).Encode(status(code, reason))
}

// watch sends events. It is called with the lock held.
func (a *apiServer) watch(w http.ResponseWriter, r *http.Request, from int, initial bool) {
	send := func(kind watch.EventType, object runtime.Object) {
		text, err := json.Marshal(object)
		if err != nil {
			a.t.Error(err)
		}
		_ = json.NewEncoder(w).Encode(metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: text}})
	}
	if initial {
		for _, s := range a.slices {
			send(watch.Added, typed(s))
		}
		mark := &discoveryv1.EndpointSlice{TypeMeta: typeOf("EndpointSlice")}
		mark.ResourceVersion = strconv.Itoa(a.version)
		mark.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		send(watch.Bookmark, mark)
		from = a.version
	}
	for {
		for _, e := range a.events {
			if e.version > from {
				send(e.kind, typed(e.slice))
				from = e.version
			}
		}
		_ = http.NewResponseController(w).Flush()
		news, end := a.news, a.end
		a.mu.Unlock()
		select {
		case <-news:
			a.mu.Lock()
		case <-end:
			a.mu.Lock()
			if a.finalise == "expired" {
				send(watch.Error, status(410, metav1.StatusReasonExpired))
			}
			return
		case <-r.Context().Done():
			a.mu.Lock()
			return
		}
	}
}

func typed(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s = s.DeepCopy()
	s.TypeMeta = typeOf("EndpointSlice")
	return s
}

// endpoint is an address and its conditions: "10.0.0.1", "10.0.0.1 unready",
// "10.0.0.1 terminating", "10.0.0.1 published" of one that terminates but is
// published as ready, "10.0.0.1 pod=a".
func endpoint(text string) discoveryv1.Endpoint {
	address, state, _ := strings.Cut(text, " ")
	e := discoveryv1.Endpoint{Addresses: []string{address}}
	yes, no := true, false
	e.Conditions = discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no}
	switch name, pod := strings.CutPrefix(state, "pod="); {
	case pod:
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: name, UID: types.UID("uid of " + name)}
	case state == "unready":
		e.Conditions.Ready, e.Conditions.Serving = &no, &no
	case state == "terminating":
		e.Conditions.Ready, e.Conditions.Terminating = &no, &yes
	case state == "published":
		e.Conditions.Terminating = &yes
	case state == "unknown":
		e.Conditions = discoveryv1.EndpointConditions{}
	}
	return e
}

func sliceOf(name string, endpoints ...string) *discoveryv1.EndpointSlice {
	port, other := int32(8000), int32(9000)
	http, metrics := "http", "metrics"
	s := &discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &metrics, Port: &other}, {Name: &http, Port: &port}},
	}
	s.Name, s.Namespace = name, "ns"
	for _, text := range endpoints {
		if strings.Contains(strings.Split(text, " ")[0], ":") {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		s.Endpoints = append(s.Endpoints, endpoint(text))
	}
	return s
}

func TestEndpointSlices(t *testing.T) {
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprint("old ", old), func(t *testing.T) {
			t.Parallel()
			a := newAPIServer(t)
			a.old = old
			a.put(sliceOf("one", "10.0.0.1", "10.0.0.2"))
			r := run(t, a.place())
			r.want("what is there", "http://10.0.0.1:8000 http://10.0.0.2:8000")
			a.put(sliceOf("one", "10.0.0.1", "10.0.0.2", "10.0.0.3 unready"))
			a.put(sliceOf("two", "10.0.0.4"))
			if took := r.want("one more, and one that is not ready", "http://10.0.0.1:8000 http://10.0.0.2:8000 http://10.0.0.4:8000"); took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
			a.put(sliceOf("one", "10.0.0.1 terminating", "10.0.0.2", "10.0.0.3"))
			r.want("one terminates, one is ready", "http://10.0.0.2:8000 http://10.0.0.3:8000 http://10.0.0.4:8000")
			a.remove("two")
			r.want("a slice is gone", "http://10.0.0.2:8000 http://10.0.0.3:8000")
			a.put(sliceOf("one", "10.0.0.3 published", "10.0.0.2 unknown"))
			r.want("one terminates where all are published", "http://10.0.0.2:8000")

			a.put(sliceOf("one", "10.0.0.2 unready"))
			r.eventually("that nobody is ready is noticed", func() bool { return !r.status().OK })
			if len(r.sets) > 0 || r.status().Replicas != 1 {
				t.Error("the last good set does not stay")
			}
			a.put(sliceOf("one", "10.0.0.2"))
			r.eventually("it is well again", func() bool { return r.status().OK })
		})
	}
}

func TestEndpointsAreOneReplicaEach(t *testing.T) {
	w := &watching{service: service{name: "vllm", port: "http", scheme: "https"}, slices: map[string]*discoveryv1.EndpointSlice{}}
	add := func(s *discoveryv1.EndpointSlice) { w.slices[s.Name] = s }
	add(sliceOf("four", "10.0.0.2 pod=a", "10.0.0.1 pod=b", "10.0.0.3 pod=c"))
	add(sliceOf("again", "10.0.0.3 pod=c"))                      // on its way from one slice to another
	add(sliceOf("six", "fd00::2 pod=a", "fd00::9 pod=only-six")) // of a Service with both families
	others := sliceOf("others", "10.0.0.8")
	others.Ports = others.Ports[:1] // it lacks the port
	add(others)
	want := "https://10.0.0.1:8000 https://10.0.0.2:8000 https://10.0.0.3:8000 https://[fd00::9]:8000"
	for _, port := range []string{"http", "8000"} {
		w.port = port
		if urls, err := w.endpoints(); texts(urls) != want || err != nil {
			t.Errorf("port %s: %s, %v; want %s", port, texts(urls), err, want)
		}
	}
	w.port = "grpc"
	if urls, err := w.endpoints(); len(urls) > 0 || err == nil || !strings.Contains(err.Error(), "has no port grpc") {
		t.Errorf("%v, %v", urls, err)
	}
	clear(w.slices)
	if _, err := w.endpoints(); err == nil || !strings.Contains(err.Error(), "has no EndpointSlice") {
		t.Error(err)
	}
}

// TestWatchIsLost has a watch end in every way there is, with changes meanwhile.
func TestWatchIsLost(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	a.put(sliceOf("one", "10.0.0.1"))
	r := run(t, a.place())
	r.want("what is there", "http://10.0.0.1:8000")
	n := 1
	add := func(what string, lose func()) {
		t.Helper()
		n++
		lose()
		a.put(sliceOf("one", fmt.Sprintf("10.0.0.%d", n)))
		r.want(what, fmt.Sprintf("http://10.0.0.%d:8000", n))
	}
	add("the watch ends", func() { a.endWatches("") })
	add("410 Gone in the stream", func() {
		a.forget()
		a.endWatches("expired")
	})
	add("410 Gone as an answer", func() {
		a.mu.Lock()
		a.changed(watch.Deleted, a.slices["one"]) // which is never heard
		a.mu.Unlock()
		a.forget()
		a.endWatches("")
	})
	add("connections break", a.CloseClientConnections)
	if r.log.count("cannot be discovered") > 1 { // the deleted slice may have been heard
		t.Errorf("trouble that is none: %s", &r.log.text)
	}

	a.mu.Lock()
	a.forbid = true
	a.mu.Unlock()
	a.endWatches("expired")
	r.eventually("that it is forbidden is noticed", func() bool { return !r.status().OK })
	if r.log.count("get, list and watch of endpointslices in namespace ns") != 1 {
		t.Errorf("no advice: %s", &r.log.text)
	}
	a.mu.Lock()
	a.forbid = false
	a.mu.Unlock()
	r.eventually("it is allowed", func() bool { return r.status().OK })
}

// TestAPIServerIsAway has nobody listen for a while, in which endpoints change.
func TestAPIServerIsAway(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	a.put(sliceOf("one", "10.0.0.1"))
	r := run(t, a.place())
	r.want("what is there", "http://10.0.0.1:8000")
	address := a.Listener.Addr().String()
	a.endWatches("")
	_ = a.Listener.Close()
	a.CloseClientConnections()
	r.eventually("it is noticed", func() bool { return !r.status().OK })
	a.put(sliceOf("one", "10.0.0.1", "10.0.0.2"))
	time.Sleep(time.Second)
	if s := r.status(); s.Replicas != 1 || len(r.sets) > 0 {
		t.Errorf("the last good set does not stay: %+v", s)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skip("somebody took the port:", err)
	}
	again := &http.Server{Handler: a}
	go func() { _ = again.Serve(l) }()
	defer func() { _ = again.Close() }()
	r.want("it is back", "http://10.0.0.1:8000 http://10.0.0.2:8000")
	if !r.status().OK || r.log.count("cannot be discovered") != 1 || r.log.count("discovered again") != 1 {
		t.Errorf("%+v: %s", r.status(), &r.log.text)
	}
}

// TestConnectionsBreak has somebody before the API server take connections and break
// them, which client-go takes for the end of a watch.
func TestConnectionsBreak(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	a.put(sliceOf("one", "10.0.0.1"))
	r := run(t, a.place())
	r.want("what is there", "http://10.0.0.1:8000")
	breaking := func(on bool) {
		a.mu.Lock()
		a.abort = on
		a.mu.Unlock()
	}
	breaking(true)
	a.CloseClientConnections()
	r.eventually("it is noticed", func() bool { return !r.status().OK })
	breaking(false)
	r.eventually("it is well again", func() bool { return r.status().OK })
}

// TestAPIServerIsSilent has it take requests and never answer: at the start, and when a
// watch has ended.
func TestAPIServerIsSilent(t *testing.T) {
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprint("old ", old), func(t *testing.T) {
			t.Parallel()
			a := newAPIServer(t)
			a.old = old
			silence := func(on bool) {
				a.mu.Lock()
				defer a.mu.Unlock()
				a.silent = on
			}
			a.put(sliceOf("one", "10.0.0.1"))
			silence(true)
			s, err := newKubernetes(a.place())
			if err != nil {
				t.Fatal(err)
			}
			impatient := s.(service)
			impatient.patience = 200 * time.Millisecond
			r := &running{t: t, sets: make(chan Set, 1000)}
			r.Finder, _ = New(nil, slog.New(slog.NewTextHandler(&r.log, nil)))
			r.places = []*place{{name: "kubernetes", source: impatient}}
			r.begin()
			r.eventually("it is noticed at the start", func() bool { return r.status().Failures > 0 })
			silence(false)
			r.want("it answers", "http://10.0.0.1:8000")
			silence(true)
			a.endWatches("expired")
			r.eventually("it is noticed later", func() bool { return !r.status().OK })
			silence(false)
			a.put(sliceOf("one", "10.0.0.2"))
			r.want("it answers again", "http://10.0.0.2:8000")
			time.Sleep(2 * impatient.patience)
			if !r.status().OK || r.log.count("discovered again") > 2 {
				t.Errorf("a watch that has begun is ended: %s", &r.log.text)
			}
		})
	}
}

// TestFiveHundredEndpoints come and go in five slices.
func TestFiveHundredEndpoints(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	all := func(gone int) (urls []string) {
		for i := range 5 {
			var endpoints []string
			for j := range 100 {
				address := fmt.Sprintf("10.1.%d.%d", i, j)
				if j%50 == gone {
					endpoints = append(endpoints, address+" terminating")
					continue
				}
				endpoints = append(endpoints, address)
				urls = append(urls, "http://"+address+":8000")
			}
			a.put(sliceOf(fmt.Sprint("slice-", i), endpoints...))
		}
		slices.Sort(urls)
		return urls
	}
	first := all(-1)
	r := run(t, a.place())
	r.want("500 endpoints", strings.Join(first, " "))
	for gone := range 3 {
		r.want("ten are gone", strings.Join(all(gone), " "))
	}
	if n := len(r.sets); n > 0 {
		t.Errorf("%d more sets", n)
	}
}
