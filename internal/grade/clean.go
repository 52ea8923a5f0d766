package grade

import (
	"regexp"
	"strings"
)

// spellings are other spellings of the same.
var spellings = strings.NewReplacer(
	`\\`, `\\`, // ends a row of a matrix
	"\u2212", "-", "–", "-", "×", `\times `, "·", `\cdot `, "÷", "/", "π", `\pi `, "√", `\sqrt `, "∞", `\infty `, "∪", `\cup `, "≤", `\le `, "≥", `\ge `, "≠", `\ne `, "±", `\pm `,
	"½", `\frac{1}{2}`, "⅓", `\frac{1}{3}`, "¼", `\frac{1}{4}`, "¾", `\frac{3}{4}`, "²", "^2", "³", "^3", "°", "", "\u00a0", " ", "\u202f", "",
	`\dfrac`, `\frac`, `\tfrac`, `\frac`, `\cfrac`, `\frac`, `\leqslant`, `\le `, `\geqslant`, `\ge `, `\leq`, `\le `, `\geq`, `\ge `, `\neq`, `\ne `,
	`\left`, "", `\right`, "", `\displaystyle`, "", `\bigl`, "", `\bigr`, "", `\Bigl`, "", `\Bigr`, "", `\big`, "", `\Big`, "",
	`{,}`, "", `\!`, "", `\,`, "", `\;`, "", `\:`, "", `\ `, " ", "~", " ", `\quad`, " ", `\qquad`, " ",
	`^{\circ}`, "", `^\circ`, "", `\circ`, "", `\degree`, "", `\$`, "", `\%`, "%", `\(`, "", `\)`, "", `\[`, "", `\]`, "", "**", "", "$", "", "€", "", "£", "", "¥", "", "`", "",
	`\lbrace`, `\{`, `\rbrace`, `\}`, `\lvert`, "|", `\rvert`, "|", `\cdots`, `\ldots`, `\dots`, `\ldots`, `\emptyset`, `\varnothing`,
)

var (
	texts = regexp.MustCompile(`\\(?:text|mbox|textbf|textit|textrm|mathrm|mathbf|mathit|operatorname|hbox)\s*\{([^{}]*)\}`)
	// unitText is a unit as text behind a value, with a power.
	unitText = regexp.MustCompile(`^(.*[0-9})\]%\s]|.*\\pi\s*)\\(?:text|mbox|textbf|textit|textrm|mathrm|mathbf|hbox)\s*\{([^{}]*)\}(?:\^\{?-?\d\}?)?\s*$`)
	// unitWord is a unit in plain words behind a value.
	unitWord  = regexp.MustCompile(`^(.*[0-9})%])\s*([A-Za-z]{2,}\.?(?:\^\{?\d\}?)?(?:[\s/.-]+[A-Za-z]+\.?(?:\^\{?\d\}?)?)*)\s*$`)
	mathWord  = regexp.MustCompile(`^(?:pi|sqrt|sin|cos|tan|log|ln|exp|and|or|mod)\b`)
	connector = regexp.MustCompile(`\s*,?\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)\s*`)
	variable  = regexp.MustCompile(`^\s*(?:[a-zA-Z](?:_\{?\w+\}?)?(?:\([a-zA-Z](?:,\s*[a-zA-Z])*\))?|\\[a-z]+|[a-zA-Z]+)\s*$`)
	spaced    = regexp.MustCompile(`^\d{1,3}(?: \d{3})+(?:\.\d+)?$`)
	article   = regexp.MustCompile(`(?i)^(?:the|a|an)\s+`)
	spaces    = regexp.MustCompile(`\s+`)
	ends      = regexp.MustCompile(`[\s.,;:。，]+$`)
	subscript = regexp.MustCompile(`_\{(\w+)\}`)
	plain     = regexp.MustCompile(`\bsqrt\s*\(`)
)

// clean brings a value to one spelling, with its unit, currency and name left out.
func clean(s string) string {
	s = spellings.Replace(strings.TrimSpace(s))
	s = ends.ReplaceAllString(strings.TrimSpace(s), "")
	if m := unitText.FindStringSubmatch(s); m != nil && !isConnector(m[2]) && strings.ContainsAny(m[1], "0123456789") {
		s = m[1]
	}
	s = connector.ReplaceAllString(s, ", ")
	s = texts.ReplaceAllString(s, " $1 ")
	s = strings.TrimSpace(spaces.ReplaceAllString(s, " "))
	s = withoutName(s)
	if m := unitWord.FindStringSubmatch(s); m != nil && !mathWord.MatchString(m[2]) && strings.ContainsAny(m[1], "0123456789") && balanced(m[1]) {
		s = m[1]
	}
	s = strings.TrimSpace(s)
	if rest, is := strings.CutSuffix(s, "%"); is {
		s = strings.TrimSpace(rest)
	}
	if spaced.MatchString(s) {
		s = strings.ReplaceAll(s, " ", "")
	}
	s = subscript.ReplaceAllString(s, "_$1")
	s = plain.ReplaceAllString(s, `\sqrt(`)
	s = ends.ReplaceAllString(article.ReplaceAllString(s, ""), "")
	for len(s) > 1 && s[0] == '{' && closing(s) == len(s)-1 {
		s = strings.TrimSpace(s[1 : len(s)-1])
	}
	return s
}

func isConnector(s string) bool {
	s = strings.TrimSpace(s)
	return s == "and" || s == "or"
}

// withoutName drops "x =" and "x \in" before a value.
func withoutName(s string) string {
	for _, sign := range []string{"=", `\in `, `\in[`, `\in(`} {
		left, right, found := strings.Cut(s, sign)
		if !found || !variable.MatchString(left) || strings.Contains(right, "=") || strings.TrimSpace(right) == "" {
			continue
		}
		if strings.HasSuffix(sign, "[") || strings.HasSuffix(sign, "(") {
			right = sign[len(sign)-1:] + right
		}
		return strings.TrimSpace(right)
	}
	return s
}

// balanced reports whether every brace is closed.
func balanced(s string) bool {
	return strings.Count(s, "{") == strings.Count(s, "}") && strings.Count(s, "(") == strings.Count(s, ")")
}
