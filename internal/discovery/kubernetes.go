package discovery

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// namespaceFile is where Kubernetes tells a pod its own namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Times of asking the API server.
const (
	firstAPIPause   = 500 * time.Millisecond // between two tries
	longestAPIPause = 5 * time.Second
	longestAnswer   = 30 * time.Second // until a list is whole, or a watch begins
)

var (
	errBroken = errors.New("the connection to the API server breaks before an answer")
	errSilent = errors.New("the API server does not answer")
)

// service is a Service in Kubernetes: each of its endpoints that is ready is a
// replica. It needs to get, list and watch EndpointSlices in one namespace.
type service struct {
	namespace string // "" for the pod's own
	name      string
	port      string // its name, or its number
	scheme    string
	api       string // "" for that of the cluster that the process runs in
	patience  time.Duration
}

func newKubernetes(raw string) (Source, error) {
	const form = "kubernetes://namespace/service:port"
	u, options, err := parseSource(raw, form, "scheme", "api")
	if err != nil {
		return nil, err
	}
	name, port, ok := strings.Cut(strings.TrimPrefix(u.Path, "/"), ":")
	s := service{namespace: u.Host, name: name, port: port, scheme: options.Get("scheme"), api: options.Get("api"), patience: longestAnswer}
	if !ok || port == "" || len(validation.IsDNS1035Label(name)) > 0 || s.namespace != "" && len(validation.IsDNS1123Label(s.namespace)) > 0 {
		return nil, fmt.Errorf("replica %q is not of the form %s", raw, form)
	}
	if s.api != "" {
		if _, err := parseURL(s.api); err != nil {
			return nil, fmt.Errorf("replica %q: api must be a URL, not %q", raw, s.api)
		}
	}
	return s, nil
}

// Run sends the Service's replicas whenever they change.
func (s service) Run(ctx context.Context, send func(Update)) {
	w := &watching{service: s, send: send, slices: map[string]*discoveryv1.EndpointSlice{}}
	client, err := w.connect()
	for err != nil {
		send(Update{Err: err})
		select {
		case <-ctx.Done():
			return
		case <-time.After(longestAPIPause): // what the pod is given may come late
		}
		client, err = w.connect()
	}
	defer utilnet.CloseIdleConnectionsFor(client.Client.Transport)
	w.client = client
	backoff := wait.Backoff{Duration: firstAPIPause, Cap: longestAPIPause, Factor: 2, Jitter: 1, Steps: 10}
	quiet := logr.Discard() // what matters is sent
	cache.NewReflectorWithOptions(&cache.ListWatch{ListWithContextFunc: w.list, WatchFuncWithContext: w.watch}, &discoveryv1.EndpointSlice{}, w,
		cache.ReflectorOptions{Logger: &quiet, Name: s.name, Backoff: &backoff}).RunWithContext(klog.NewContext(ctx, quiet))
}

// watching is a service that is being watched: the store of client-go's reflector,
// which is the core of its informers. It belongs to one goroutine.
type watching struct {
	service
	client  *rest.RESTClient
	send    func(Update)
	slices  map[string]*discoveryv1.EndpointSlice // by name
	synced  bool
	failing bool
}

// connect makes a client for EndpointSlices and nothing else.
func (w *watching) connect() (*rest.RESTClient, error) {
	cfg := &rest.Config{Host: w.api}
	if w.api == "" {
		var err error
		if cfg, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("this does not run in a pod with a service account (outside of the cluster use the option api): %w", err)
		}
	}
	if w.namespace == "" {
		text, err := os.ReadFile(namespaceFile)
		if err != nil {
			return nil, fmt.Errorf("the pod's own namespace is not known: name it in the URL: %w", err)
		}
		w.namespace = strings.TrimSpace(string(text))
	}
	scheme := runtime.NewScheme()
	if err := discoveryv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	cfg.APIPath, cfg.GroupVersion = "/apis", &discoveryv1.SchemeGroupVersion
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.UserAgent, cfg.WarningHandler = "warmpath", rest.NoWarnings{}
	return rest.RESTClientFor(cfg)
}

func (w *watching) request(options *metav1.ListOptions) *rest.Request {
	options.LabelSelector = discoveryv1.LabelServiceName + "=" + w.name
	// The reflector tries again, and what fails has to be told before.
	return w.client.Get().MaxRetries(0).Namespace(w.namespace).Resource("endpointslices").VersionedParams(options, metav1.ParameterCodec)
}

func (w *watching) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list := &discoveryv1.EndpointSliceList{}
	err := w.request(&options).Timeout(w.patience).Do(ctx).Into(list)
	w.noted(ctx, err)
	return list, err
}

func (w *watching) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	own, cancel := context.WithCancelCause(ctx)
	silent := time.AfterFunc(w.patience, func() { cancel(errSilent) })
	news, err := w.request(&options).Watch(own)
	silent.Stop()
	if _, streams := news.(*watch.StreamWatcher); err == nil && !streams {
		err = errBroken // for which client-go has a watch without events instead of an error
	}
	if err == nil {
		news = begun{news, cancel}
	} else if cancel(err); errors.Is(context.Cause(own), errSilent) {
		err = errSilent
	}
	if options.SendInitialEvents != nil && err != nil && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)) {
		return news, err // an older API server, of which a list is asked next
	}
	w.noted(ctx, err)
	return news, err
}

// begun is a watch that is no longer waited for.
type begun struct {
	watch.Interface
	cancel context.CancelCauseFunc
}

// Stop ends the watch.
func (b begun) Stop() {
	b.Interface.Stop()
	b.cancel(nil)
}

// noted tells how a request went. One that succeeds after others failed says that
// what is known holds.
func (w *watching) noted(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil, apierrors.IsResourceExpired(err), apierrors.IsGone(err): // then everything is listed again
	case err != nil:
		w.failing = true
		w.send(Update{Err: w.advise(err)})
	case w.failing && w.synced:
		w.failing = false
		w.tell()
	}
}

// advise adds what to do about an error.
func (w *watching) advise(err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return fmt.Errorf("%w (a Role must allow get, list and watch of endpointslices in namespace %s)", err, w.namespace)
	}
	return err
}

// The methods of [cache.ReflectorStore].

// Add takes a new slice.
func (w *watching) Add(obj any) error { return w.Update(obj) }

// Update takes a slice that has changed.
func (w *watching) Update(obj any) error {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return fmt.Errorf("a %T is no EndpointSlice", obj)
	}
	w.slices[slice.Name] = slice
	w.tell()
	return nil
}

// Delete takes a slice that is gone.
func (w *watching) Delete(obj any) error {
	if slice, ok := obj.(*discoveryv1.EndpointSlice); ok {
		delete(w.slices, slice.Name)
	}
	w.tell()
	return nil
}

// Replace takes all slices there are.
func (w *watching) Replace(list []any, _ string) error {
	clear(w.slices)
	for _, obj := range list {
		if slice, ok := obj.(*discoveryv1.EndpointSlice); ok {
			w.slices[slice.Name] = slice
		}
	}
	w.synced, w.failing = true, false
	w.tell()
	return nil
}

// Resync does nothing: what is stored has been told.
func (w *watching) Resync() error { return nil }

// tell sends the full set.
func (w *watching) tell() {
	urls, err := w.endpoints()
	w.send(Update{URLs: urls, Err: err})
}

// endpoints returns the endpoints that are ready: they may be in several slices, and
// those of a Service with both families once with each address.
func (w *watching) endpoints() (urls []*url.URL, err error) {
	known := map[string]bool{} // pods that have an IPv4 address
	for _, family := range [...]discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN} {
		for _, slice := range w.slices {
			if slice.AddressType != family || len(slice.Endpoints) == 0 {
				continue
			}
			port := w.portOf(slice)
			if port == 0 {
				err = fmt.Errorf("its EndpointSlice %s has no port %s", slice.Name, w.port)
				continue
			}
			for i := range slice.Endpoints {
				e := &slice.Endpoints[i]
				if !routable(e) || len(e.Addresses) == 0 {
					continue
				}
				if pod := e.TargetRef; pod != nil {
					if family != discoveryv1.AddressTypeIPv4 && known[string(pod.UID)+pod.Name] {
						continue
					}
					known[string(pod.UID)+pod.Name] = true
				}
				urls = append(urls, urlOf(w.scheme, e.Addresses[0], strconv.Itoa(port))) // the others are the same endpoint's
			}
		}
	}
	if len(urls) > 0 {
		err = nil // slices whose pods do not have the port are another version's
	} else if err == nil && len(w.slices) == 0 {
		err = errors.New("the Service has no EndpointSlice: is there one of that name in the namespace?")
	}
	return sorted(urls), err
}

// routable reports whether an endpoint may get new requests. One that terminates
// counts as ready where a Service publishes those that are not.
func routable(e *discoveryv1.Endpoint) bool {
	is := func(condition *bool, unknown bool) bool {
		if condition == nil {
			return unknown
		}
		return *condition
	}
	return is(e.Conditions.Ready, true) && !is(e.Conditions.Terminating, false)
}

// portOf returns the number of the service's port in a slice, 0 if it has none. A
// port that is named by its number is the endpoints' own, not the Service's.
func (w *watching) portOf(slice *discoveryv1.EndpointSlice) int {
	for _, p := range slice.Ports {
		if p.Port == nil {
			continue
		}
		number := int(*p.Port)
		if p.Name != nil && *p.Name == w.port || strconv.Itoa(number) == w.port {
			return number
		}
	}
	return 0
}
