package mockvllm

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"
	"time"
)

// dimensions is the length of an embedding.
const dimensions = 16

// pool prefills prompts without generating, and returns a vector drawn from each prompt's tokens.
func (x *exchange) pool(model string, prompts [][]uint32) ([][]float32, *job, error) {
	if len(prompts) == 0 {
		return nil, nil, badRequest("input", "input must not be empty")
	}
	_, adapter, err := x.s.lookup(model)
	if err != nil {
		return nil, nil, err
	}
	var reqs []Request
	var choices []*choice
	vectors := make([][]float32, len(prompts))
	for i, p := range prompts {
		reqs = append(reqs, Request{Prompt: p, Adapter: adapter})
		choices = append(choices, &choice{prompt: len(p), reason: "stop"})
		for _, t := range newAnswer(p, false).tokens(dimensions) {
			vectors[i] = append(vectors[i], float32(t)/(1<<30)-1)
		}
	}
	j, err := x.s.enqueue(reqs, choices)
	if err != nil {
		return nil, nil, err
	}
	if _, _, err = x.texts(j); err != nil {
		return nil, nil, err
	}
	return vectors, j, nil
}

// poolAnswer fits all three: embeddings and scores have data, reranking has results.
type poolAnswer struct {
	ID      string `json:"id"`
	Object  string `json:"object,omitempty"`
	Created int64  `json:"created,omitempty"`
	Model   string `json:"model"`
	Data    any    `json:"data,omitempty"`
	Results any    `json:"results,omitempty"`
	Usage   usage  `json:"usage"`
}

type embeddingRequest struct {
	Model          string          `json:"model"`
	Input          json.RawMessage `json:"input"`
	EncodingFormat string          `json:"encoding_format"`
}

// embeddings is POST /v1/embeddings.
func (x *exchange) embeddings() error {
	var req embeddingRequest
	if err := decode(x.body, &req); err != nil {
		return err
	}
	ids, err := prompts(req.Input)
	if err != nil {
		return err
	}
	vectors, j, err := x.pool(req.Model, ids)
	if err != nil {
		return err
	}
	type datum struct {
		Index     int    `json:"index"`
		Object    string `json:"object"`
		Embedding any    `json:"embedding"`
	}
	var data []datum
	for i, v := range vectors {
		d := datum{i, "embedding", v}
		if req.EncodingFormat == "base64" { // what the OpenAI client asks for by itself
			var b []byte
			for _, f := range v {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
			}
			d.Embedding = base64.StdEncoding.EncodeToString(b)
		}
		data = append(data, d)
	}
	return x.reply(x.pooled(req.Model, "embd-", "list", data, nil, j))
}

func (x *exchange) pooled(model, prefix, object string, data, results any, j *job) poolAnswer {
	name, _, _ := x.s.lookup(model)
	a := poolAnswer{ID: x.id(prefix), Object: object, Model: name, Data: data, Results: results, Usage: j.usage(1)}
	if object != "" {
		a.Created = time.Now().Unix()
	}
	return a
}

// texts is one string or several; objects with a text count as their text.
type texts []string

// UnmarshalJSON reads one text or a list.
func (t *texts) UnmarshalJSON(b []byte) error {
	parts, err := contentParts(b)
	for _, p := range parts {
		*t = append(*t, p.text)
	}
	return err
}

type rerankRequest struct {
	Model     string `json:"model"`
	Query     string `json:"query"`
	Documents texts  `json:"documents"`
	TopN      int    `json:"top_n"`
}

// rerank is POST /v1/rerank.
func (x *exchange) rerank() error {
	var req rerankRequest
	if err := decode(x.body, &req); err != nil {
		return err
	}
	scores, j, err := x.scores(req.Model, texts{req.Query}, req.Documents)
	if err != nil {
		return err
	}
	type document struct {
		Text string `json:"text"`
	}
	type result struct {
		Index    int      `json:"index"`
		Document document `json:"document"`
		Score    float64  `json:"relevance_score"`
	}
	var results []result
	for i, s := range scores {
		results = append(results, result{i, document{req.Documents[i]}, s})
	}
	slices.SortStableFunc(results, func(a, b result) int {
		switch {
		case a.Score > b.Score:
			return -1
		case a.Score < b.Score:
			return 1
		}
		return 0
	})
	if req.TopN > 0 && req.TopN < len(results) {
		results = results[:req.TopN]
	}
	return x.reply(x.pooled(req.Model, "rerank-", "", nil, results, j))
}

type scoreRequest struct {
	Model string `json:"model"`
	Text1 texts  `json:"text_1"`
	Text2 texts  `json:"text_2"`
}

// score is POST /v1/score.
func (x *exchange) score() error {
	var req scoreRequest
	if err := decode(x.body, &req); err != nil {
		return err
	}
	scores, j, err := x.scores(req.Model, req.Text1, req.Text2)
	if err != nil {
		return err
	}
	type datum struct {
		Index  int     `json:"index"`
		Object string  `json:"object"`
		Score  float64 `json:"score"`
	}
	var data []datum
	for i, s := range scores {
		data = append(data, datum{i, "score", s})
	}
	return x.reply(x.pooled(req.Model, "score-", "list", data, nil, j))
}

// scores rates each of b against the one a, or pair by pair: the share of b's tokens that a has too.
func (x *exchange) scores(model string, a, b texts) ([]float64, *job, error) {
	if len(a) == 0 || len(b) == 0 || len(a) != 1 && len(a) != len(b) {
		return nil, nil, badRequest("text_1", "one text or as many as in the second list are needed")
	}
	var ids [][]uint32
	scores := make([]float64, len(b))
	for i, text := range b {
		query, doc := Encode(a[i%len(a)]), Encode(text)
		for _, t := range doc {
			if slices.Contains(query, t) {
				scores[i] += 1 / float64(len(doc))
			}
		}
		ids = append(ids, slices.Concat(query, []uint32{special("<|sep|>")}, doc))
	}
	_, j, err := x.pool(model, ids)
	return scores, j, err
}
