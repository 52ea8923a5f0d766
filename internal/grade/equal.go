package grade

import (
	"regexp"
	"slices"
	"strings"
)

// longest is how long a value may be to be understood; longer ones are compared as
// text. No reference of the known datasets comes near.
const longest = 300

// Equal reports whether two values are the same.
func Equal(a, b string) bool { return same(a, b, 0) }

// deepest bounds how deep lists may be nested.
const deepest = 4

func same(a, b string, depth int) bool {
	a, b = clean(a), clean(b)
	if a == "" || b == "" {
		return a == b
	}
	if strings.EqualFold(tight(a), tight(b)) {
		return true
	}
	if len(a) > longest || len(b) > longest || depth > deepest {
		return false
	}
	va, vb := read(a), read(b)
	if va.kind == vb.kind && va.kind != single {
		return va.open == vb.open && va.close == vb.close && members(va, vb, depth)
	}
	if va.kind != vb.kind {
		return false
	}
	return relations(a, b, depth) || evaluates(a, b)
}

// tight is a value without what does not change it.
func tight(s string) string {
	s = strings.ReplaceAll(s, " ", "")
	if m := choice.FindStringSubmatch(s); m != nil {
		return m[1]
	}
	return s
}

// choice is a letter of multiple choice in brackets.
var choice = regexp.MustCompile(`^\(([A-Za-z])\)\.?$`)

// kind is the shape of a value.
type kind int

const (
	single kind = iota
	tuple       // of which order and brackets count: points, intervals, matrices
	set         // of which order does not count: sets, lists of solutions, unions
)

type compound struct {
	kind        kind
	open, close string
	parts       []string
}

var (
	thousands = regexp.MustCompile(`^[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$`)
	matrix    = regexp.MustCompile(`^\\begin\{([bpvBV]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{[a-zA-Z]*\}$`)
)

// read finds the shape of a clean value.
func read(s string) compound {
	if m := matrix.FindStringSubmatch(s); m != nil {
		rows := strings.Split(strings.TrimSuffix(strings.TrimSpace(m[2]), `\\`), `\\`)
		c := compound{kind: tuple, open: "matrix"}
		for _, row := range rows {
			c.parts = append(c.parts, strings.Split(row, "&")...)
			c.close += strings.Repeat(",", strings.Count(row, "&")) + ";"
		}
		return c
	}
	if parts := split(s, `\cup`); len(parts) > 1 {
		return compound{kind: set, open: "union", parts: parts}
	}
	if strings.HasPrefix(s, `\{`) && strings.HasSuffix(s, `\}`) && !strings.Contains(s[2:len(s)-2], `\{`) {
		return compound{kind: set, parts: split(s[2:len(s)-2], ",")}
	}
	if thousands.MatchString(s) {
		return compound{}
	}
	if len(s) > 1 && strings.ContainsAny(s[:1], "([") && strings.ContainsAny(s[len(s)-1:], ")]") && wraps(s) {
		if parts := split(s[1:len(s)-1], ","); len(parts) > 1 {
			return compound{kind: tuple, open: s[:1], close: s[len(s)-1:], parts: parts}
		}
		return compound{}
	}
	if parts := split(s, ","); len(parts) > 1 {
		return compound{kind: set, parts: parts}
	}
	if left, right, found := strings.Cut(s, `\pm`); found && strings.Count(s, `\pm`) == 1 {
		return compound{kind: set, parts: []string{left + "+" + right, left + "-" + right}}
	}
	return compound{}
}

// wraps reports whether the first bracket is closed by the last one.
func wraps(s string) bool {
	depth := 0
	for i, c := range s {
		switch c {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			if depth--; depth == 0 {
				return i == len(s)-1
			}
		}
	}
	return false
}

// split cuts a value at separators that stand in no brackets.
func split(s, by string) (parts []string) {
	depth, from := 0, 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		}
		if depth == 0 && i >= from && strings.HasPrefix(s[i:], by) {
			parts = append(parts, strings.TrimSpace(s[from:i]))
			from = i + len(by)
		}
	}
	return append(parts, strings.TrimSpace(s[from:]))
}

// mostMembers bounds the work of comparing sets.
const mostMembers = 24

// members compares the parts of two values of one shape.
func members(a, b compound, depth int) bool {
	if len(a.parts) != len(b.parts) || len(a.parts) > mostMembers {
		return false
	}
	if a.kind == tuple {
		for i := range a.parts {
			if !same(a.parts[i], b.parts[i], depth+1) {
				return false
			}
		}
		return true
	}
	left := slices.Clone(b.parts)
	for _, p := range a.parts {
		i := slices.IndexFunc(left, func(q string) bool { return same(p, q, depth+1) })
		if i < 0 {
			return false
		}
		left = slices.Delete(left, i, i+1)
	}
	return true
}

var relation = regexp.MustCompile(`\\le\b|\\ge\b|\\ne\b|<=|>=|<|>|=`)

// flipped is a relation read from the right.
var flipped = map[string]string{`\le`: `\ge`, `\ge`: `\le`, "<": ">", ">": "<", "=": "=", `\ne`: `\ne`}

// relations compares equations and inequalities, also read from the other side.
func relations(a, b string, depth int) bool {
	sidesA, signsA := sides(a)
	sidesB, signsB := sides(b)
	if len(signsA) == 0 || len(signsA) != len(signsB) {
		return false
	}
	equal := func() bool {
		if !slices.Equal(signsA, signsB) {
			return false
		}
		for i := range sidesA {
			if !same(sidesA[i], sidesB[i], depth+1) {
				return false
			}
		}
		return true
	}
	if equal() {
		return true
	}
	slices.Reverse(sidesB)
	slices.Reverse(signsB)
	for i, s := range signsB {
		signsB[i] = flipped[s]
	}
	return equal()
}

func sides(s string) (sides, signs []string) {
	from := 0
	for _, m := range relation.FindAllStringIndex(s, -1) {
		sides = append(sides, s[from:m[0]])
		sign := s[m[0]:m[1]]
		switch sign {
		case "<=":
			sign = `\le`
		case ">=":
			sign = `\ge`
		}
		signs = append(signs, sign)
		from = m[1]
	}
	return append(sides, s[from:]), signs
}
