//go:build e2e

// Package e2e tests the gateway as its users have it: the binary, in front of
// vLLM replicas that run a real model; and it holds the mock replica's engine to
// such a replica, and simulations to real sockets. It needs test/vllm/setup.sh,
// Python 3 with venv, PyPI for the clients' packages, and seven to eleven minutes
// of two cores:
//
//	go test -v -tags e2e -count=1 -timeout 25m ./test/e2e/
//
// VLLM_URLS="url url" uses replicas that run already; they must serve smol4 with
// blocks of 128 tokens, or the figures mean nothing. Some tests need none of that:
//
//	go test -v -tags e2e -count=1 -run 'Replay|Index|Dashboard|Page' ./test/e2e/
package e2e

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
)

// TestGateway is one test, because its parts share replicas that take more than
// a minute to start, and the last part kills one of them.
func TestGateway(t *testing.T) {
	s := newStage(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T, *stage)
	}{
		{"every endpoint is routed by prefix", testEndpoints},
		{"a conversation stays with its cache", testConversation},
		{"the official clients are served", testClients},
		{"a repeated prompt is answered sooner", testRepeatedPrompt},
		{"prefix routing beats round robin", testSharedPrefixes},
		{"a killed replica is survived", testKilledReplica},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, s) })
	}
}

// testEndpoints sends the same long prompt twice to every endpoint that is routed
// by prefix: the second time the engine must find it in its cache, and the gateway
// must have known.
func testEndpoints(t *testing.T, s *stage) {
	ids := make([]int, 600)
	for i := range ids {
		ids[i] = 1000 + rand.IntN(40000)
	}
	chat := func(stream bool) object {
		body := object{"messages": []object{message("system", words(600)), message("user", "why?")}, "max_tokens": 4}
		if stream {
			body["stream"], body["stream_options"] = true, object{"include_usage": true}
		}
		return body
	}
	for _, endpoint := range []struct {
		name, path string
		body       object
	}{
		{"chat", "/v1/chat/completions", chat(false)},
		{"chat, streamed", "/v1/chat/completions", chat(true)},
		{"completions of text", "/v1/completions", object{"prompt": words(600), "max_tokens": 4}},
		{"completions of token ids", "/v1/completions", object{"prompt": ids, "max_tokens": 4}},
		{"completions of two prompts", "/v1/completions", object{"prompt": []string{words(600), words(600)}, "max_tokens": 4}},
		{"responses", "/v1/responses", object{"input": words(600), "max_output_tokens": 4}},
		{"messages", "/v1/messages", object{"messages": []object{message("user", words(600))}, "max_tokens": 4}},
	} {
		t.Run(endpoint.name, func(t *testing.T) {
			endpoint.body["model"], endpoint.body["temperature"] = model, 0
			first := s.post(t, endpoint.path, endpoint.body)
			before := map[string]float64{}
			for _, u := range s.urls {
				before[id(u)] = engineCached(t, u)
			}
			second := s.post(t, endpoint.path, endpoint.body)

			// The engine counts what it has computed, so its count may come after its answer.
			url, counted := s.url(t, second.replica), 0.0
			for range 20 {
				if counted = engineCached(t, url) - before[second.replica]; counted > 0 {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			t.Logf("second time: predicted %d of %d, usage says %d, the engine counted %.0f", second.predicted, second.prompt, second.usage.cached(), counted)
			if n := first.usage.cached(); n != 0 {
				t.Errorf("the first time, usage says that %d tokens of a new prompt were cached", n)
			}
			if second.replica != first.replica {
				t.Errorf("the first went to %s, the second to %s", first.replica, second.replica)
			}
			if second.usage.cached() == 0 {
				t.Error("the second time, usage says that nothing was cached")
			}
			if counted == 0 {
				t.Errorf("the second time, %s counted no cached tokens", second.replica)
			}
			if second.predicted == 0 {
				t.Error("the second time, the gateway predicted no cached tokens")
			}
		})
	}
}

// testConversation lets a model and its user take turns. Everything said before
// must come from the cache, what the model said included.
func testConversation(t *testing.T, s *stage) {
	// The model is a torso of four layers. Left alone, it babbles in tokens that its
	// own tokenizer would never make of its text, and no engine could find them
	// again. So it is made to repeat one word.
	word := onlyToken(t, s, " cache")
	talk := []object{message("system", words(700))}
	var before *answer
	for turn := range 4 {
		talk = append(talk, message("user", words(60)))
		a := s.post(t, "/v1/chat/completions", object{
			"model": model, "messages": talk, "temperature": 0, "max_tokens": 100, "logit_bias": word,
		})
		talk = append(talk, message("assistant", a.text))
		if before != nil {
			held := (before.usage.Prompt + before.usage.Completion) / block * block
			t.Logf("turn %d: predicted %d of %d, the engine had %d of %d; %d were there to have", turn+1, a.predicted, a.prompt, a.usage.cached(), a.usage.Prompt, held)
			if a.replica != before.replica {
				t.Errorf("turn %d went to %s, the one before to %s", turn+1, a.replica, before.replica)
			}
			if float64(a.usage.cached()) < 0.9*float64(held) {
				t.Errorf("turn %d: %d cached tokens, want 90 %% of %d", turn+1, a.usage.cached(), held)
			}
			if d := a.predicted - a.usage.cached(); d < -block || d > block {
				t.Errorf("turn %d: predicted %d cached tokens, the engine had %d: more than a block apart", turn+1, a.predicted, a.usage.cached())
			}
		}
		before = a
	}
}

// onlyToken returns a logit_bias that leaves the model a single word, which must
// be one token.
func onlyToken(t *testing.T, s *stage, word string) object {
	t.Helper()
	var tokens struct{ Tokens []int }
	s.json(t, "/tokenize", object{"model": model, "prompt": word, "add_special_tokens": false}, &tokens)
	if len(tokens.Tokens) != 1 {
		t.Fatalf("%q is %d tokens, want 1", word, len(tokens.Tokens))
	}
	return object{strconv.Itoa(tokens.Tokens[0]): 100}
}
