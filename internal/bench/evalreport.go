package bench

// EvalReport is the accuracy of a run of graded items.
type EvalReport struct {
	Items     int     `json:"items"`
	Right     int     `json:"right"`
	Wrong     int     `json:"wrong"`
	NoAnswer  int     `json:"no_answer_found"`
	Truncated int     `json:"truncated"` // cut by max_tokens, counted here alone
	Failed    int     `json:"failed"`    // requests that failed
	Accuracy  float64 `json:"accuracy"`  // right of all items that were answered
	// Differences are items whose output differs from that of the other server.
	Compared    int          `json:"compared,omitempty"`
	Differences []Difference `json:"differences,omitempty"`
	Graded      []Graded     `json:"graded"`
}

// Graded is one item.
type Graded struct {
	Index   int    `json:"index"`
	Outcome string `json:"outcome"`
	Gold    string `json:"gold"`
	Found   string `json:"found"`
	Text    string `json:"text"`
	Thought string `json:"reasoning,omitempty"`
	Finish  string `json:"finish_reason,omitempty"`
	Failure string `json:"failure,omitempty"`
	Sample  Sample `json:"sample"`
}

// Difference is an item that two servers answered differently.
type Difference struct {
	Index int    `json:"index"`
	At    int    `json:"at_byte"` // of the first difference
	A     string `json:"a"`       // from a little before it
	B     string `json:"b"`
	// Unstable says that one server alone does not repeat itself either, or agrees with
	// the other when asked again: the difference is the engine's and not the way's.
	Unstable bool `json:"unstable"`
}
