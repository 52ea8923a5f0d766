// Package grade finds the final answer in what a model wrote about a mathematical
// problem, and says whether it equals the reference. It is pure functions.
//
// [Extract] takes, in this order: the last explicit mark (\boxed, \fbox, "####" of
// GSM8K, or a marker of the caller's), the last "the answer is", the last number.
// What stands in a finished <think> part counts only if nothing follows it.
//
// [Equal] compares values, not spellings: 6,000 is 6000, \dfrac12 is 0.5, 1\frac12
// is 3/2, \{1,2\} is \{2,1\}. Units, currencies, degrees and percent signs are not
// compared: 20\% equals 20 and does not equal 0.2. A decimal equals a fraction only
// if it is exact: 0.33 is not 1/3.
package grade

import (
	"regexp"
	"slices"
	"strings"
)

// Outcome is what came of one answer.
type Outcome string

// The outcomes. Missing is not Wrong: it says that no answer was found to compare,
// and many of them that the prompt asks for another form.
const (
	Right   Outcome = "right"
	Wrong   Outcome = "wrong"
	Missing Outcome = "no answer found"
)

// Source says what an answer was found by.
type Source string

// The sources, from the surest to the last resort.
const (
	Mark   Source = "mark"   // \boxed, ####, or the caller's marker
	Phrase Source = "phrase" // "the answer is"
	Number Source = "number" // the last number of the text
)

// Extract finds the final answer of a text. Marker is one more mark behind which an
// answer stands to the end of its line, such as "A:"; "" is none.
func Extract(text, marker string) (answer string, by Source, ok bool) {
	if end := strings.LastIndex(text, "</think>"); end >= 0 {
		if answer, by, ok = Extract(text[end+len("</think>"):], marker); ok {
			return answer, by, true
		}
	}
	text = notes.ReplaceAllString(text, "")
	if answer, ok = lastMark(text, marker); ok {
		return answer, Mark, true
	}
	if answer, ok = lastPhrase(text); ok {
		return answer, Phrase, true
	}
	if all := numbers(text); len(all) > 0 {
		return all[len(all)-1], Number, true
	}
	return "", "", false
}

// Gold returns the reference in a dataset's answer: what stands behind GSM8K's
// "####", in the last \boxed of MATH's solutions, or the whole.
func Gold(text string) string {
	text = notes.ReplaceAllString(text, "")
	if i := strings.LastIndex(text, hashes); i >= 0 {
		return strings.TrimSpace(text[i+len(hashes):])
	}
	if boxes := boxed(text); len(boxes) > 0 {
		return boxes[len(boxes)-1].text
	}
	return strings.TrimSpace(text)
}

// Grade finds the answer of a text and compares it with a reference, which goes
// through [Gold] first.
func Grade(text, gold, marker string) (outcome Outcome, found string) {
	found, _, ok := Extract(text, marker)
	switch {
	case !ok:
		return Missing, ""
	case Equal(found, Gold(gold)):
		return Right, found
	}
	return Wrong, found
}

const hashes = "####"

// notes are GSM8K's calculations, such as <<16-3=13>>.
var notes = regexp.MustCompile(`<<[^<>\n]*>>`)

// place is an answer and where it ends in its text.
type place struct {
	text string
	at   int
}

// lastMark returns the last explicitly marked answer.
func lastMark(text, marker string) (string, bool) {
	all := append(boxed(text), marked(text, hashes)...)
	if marker != "" {
		all = append(all, marked(text, marker)...)
	}
	best := place{at: -1}
	for _, p := range all {
		if p.at > best.at {
			best = p
		}
	}
	return best.text, best.at >= 0
}

// boxes open a box; a space may follow.
var boxes = regexp.MustCompile(`\\(?:boxed|fbox|framebox)\b\s*`)

// boxed returns what stands in boxes, braces nested. A box that is not closed was
// cut off and is none.
func boxed(text string) (all []place) {
	for _, m := range boxes.FindAllStringIndex(text, -1) {
		rest := text[m[1]:]
		inner := ""
		if strings.HasPrefix(rest, "{") {
			n := closing(rest)
			if n < 0 {
				continue
			}
			inner = rest[1:n]
		} else {
			inner = rest[:len(rest)-len(strings.TrimLeft(rest, "-+0123456789.,/"))]
			inner = strings.TrimRight(inner, ".,")
		}
		if inner = strings.TrimSpace(inner); inner != "" {
			all = append(all, place{inner, m[1]})
		}
	}
	return all
}

// closing returns where the bracket that a text begins with is closed, -1 if it is
// not. Braces that are escaped are signs of a set.
func closing(s string) int {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// marked returns what stands behind marks at the beginning of a value. A heading of
// Markdown has the same mark as GSM8K's answers, but words behind it.
func marked(text, mark string) (all []place) {
	for from := 0; ; {
		i := strings.Index(text[from:], mark)
		if i < 0 {
			return all
		}
		from += i + len(mark)
		if strings.HasPrefix(text[from:], "#") {
			continue
		}
		line, _, _ := strings.Cut(text[from:], "\n")
		if v, ok := leading(line); ok {
			all = append(all, place{v, from})
		}
	}
}

var (
	heading = regexp.MustCompile(`^\d+[.):]\s+\pL`)
	// decoration stands around values: emphasis, currencies, delimiters of mathematics.
	decoration = regexp.MustCompile(`^(?:[*_\x60\s$€£¥:=≈~]|\\\$|\\\(|\\\[|approximately|about|exactly)*`)
	tail       = regexp.MustCompile(`(?:[*_\x60\s$.,;!。，]|\\\)|\\\])*$`)
)

// leading returns the value that a line begins with.
func leading(line string) (string, bool) {
	line = strings.TrimSpace(line)
	bare := line[len(decoration.FindString(line)):]
	if strings.HasPrefix(bare, "- $") { // a sign before a currency
		bare = "-" + bare[3:]
	}
	if bare == "" || heading.MatchString(bare) {
		return "", false
	}
	if found := numbers(bare); len(found) > 0 && strings.HasPrefix(compact(bare), compact(found[0])) {
		if rest := bare[min(len(bare), strings.Index(bare, found[0])+len(found[0])):]; !strings.HasPrefix(strings.TrimSpace(rest), `\`) && !inList(rest) {
			return found[0], true
		}
	}
	if strings.ContainsAny(bare[:1], `\([{-+.|√π∞`) || len(bare) <= 2 {
		return bare[:len(bare)-len(tail.FindString(bare))], true
	}
	if strings.ContainsAny(bare, "0123456789") && !words.MatchString(bare) {
		return bare[:len(bare)-len(tail.FindString(bare))], true
	}
	return "", false
}

var (
	words = regexp.MustCompile(`\pL{2,}`)
	next  = regexp.MustCompile(`^\s*(?:,\s*[-$\d\\]|[-+*^(]|/\s*\d)`)
)

// inList tells that what follows a number belongs to the same value.
func inList(rest string) bool { return next.MatchString(rest) }

func compact(s string) string {
	return strings.NewReplacer(" ", "", ",", "", "$", "").Replace(s)
}

// phrases announce an answer.
var phrases = regexp.MustCompile(`(?i)(?:\banswer\b(?:\s+(?:to|for)\s[^.:\n]{0,80}?)?\s*(?:\*\*)?\s*(?:is|are|was|=|:)\s*:?|答案(?:是|为|：|:))`)

// lastPhrase returns what the last announcement says.
func lastPhrase(text string) (string, bool) {
	found := phrases.FindAllStringIndex(text, -1)
	for _, m := range slices.Backward(found) {
		if v, ok := announced(text[m[1]:]); ok {
			return v, true
		}
	}
	return "", false
}

var (
	formula  = regexp.MustCompile(`^(?:[*\s:]*)(?:\$\$?([^$\n]+)\$|\\\((.+?)\\\)|\\\[\s*(.+?)\s*\\\])`)
	sentence = regexp.MustCompile(`[.!。](?:\s|\*|$)`)
)

// announced reads the value that a text begins with: a formula, a number in the
// sentence, or its words.
func announced(rest string) (string, bool) {
	line, _, _ := strings.Cut(strings.TrimLeft(rest, " \n\t*"), "\n")
	if m := formula.FindStringSubmatch(line); m != nil {
		inner := m[1] + m[2] + m[3]
		if strings.Contains(inner, `\`) || !words.MatchString(inner) {
			return side(inner), true
		}
	}
	if end := sentence.FindStringIndex(line); end != nil {
		line = line[:end[0]]
	}
	line = side(line)
	if v, ok := leading(line); ok {
		return v, true
	}
	if all := numbers(line); len(all) > 0 {
		return all[0], true
	}
	line = line[:len(line)-len(tail.FindString(line))]
	line = line[len(decoration.FindString(line)):]
	return line, line != ""
}

// side is the right side of an equation, or the whole.
func side(s string) string {
	if i := strings.LastIndex(s, "="); i >= 0 && strings.TrimSpace(s[i+1:]) != "" {
		return strings.TrimSpace(s[i+1:])
	}
	return strings.TrimSpace(s)
}

// number is a number as people write it: thousands separated, decimals, a fraction
// or a mixed number.
var number = regexp.MustCompile(`(?:[-−+]\s?)?(?:\\?\$|€|£)?\s?(?:\d+ \d+/\d+|(?:\d{1,3}(?:(?:,|\{,\})\d{3})+|\d+)(?:\.\d+)?(?:/\d+(?:\.\d+)?)?|\.\d+)%?`)

// numbers returns the numbers of a text. A minus behind a value is an operator and
// no sign.
func numbers(text string) (all []string) {
	for _, m := range number.FindAllStringIndex(text, -1) {
		v := text[m[0]:m[1]]
		if bare := strings.TrimLeft(v, "-−+"); bare != v && operator(text[:m[0]], strings.HasPrefix(bare, " ")) {
			v = bare
		}
		if m[1] < len(text) && strings.HasSuffix(v, ".") {
			v = v[:len(v)-1]
		}
		all = append(all, strings.TrimSpace(v))
	}
	return all
}

// operator reports whether a sign behind a text connects two values: behind a digit
// or a bracket, right behind a letter, or with a space on both sides.
func operator(before string, spaced bool) bool {
	value := strings.TrimRight(before, " ")
	if value == "" {
		return false
	}
	c := value[len(value)-1]
	return c >= '0' && c <= '9' || strings.IndexByte(")}]%$", c) >= 0 || c >= 0x80 || len(value) == len(before) && letter(c) || spaced && len(value) < len(before) && letter(c)
}
