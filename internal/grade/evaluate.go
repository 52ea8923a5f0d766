package grade

import (
	"errors"
	"math"
	"math/big"
	"math/cmplx"
	"regexp"
	"strings"
)

// evaluates reports whether two expressions have the same value, for each of a few
// values of their variables.
func evaluates(a, b string) bool {
	if prose.MatchString(a) || prose.MatchString(b) {
		return false
	}
	for _, seed := range []float64{0.7390851332, 1.3247179572, 2.2360679775} {
		va, errA := evaluate(a, seed)
		vb, errB := evaluate(b, seed)
		if errA != nil || errB != nil || !va.equals(vb) {
			return false
		}
	}
	return true
}

// prose is a word, which is not a product of its letters.
var prose = regexp.MustCompile(`(?:^|[^\\a-zA-Z])[a-zA-Z]{4,}`)

// quantity is a number: exact as long as it can be kept so.
type quantity struct {
	exact *big.Rat
	near  complex128
}

func rational(r *big.Rat) quantity {
	f, _ := r.Float64()
	if r.Num().BitLen() > mostBits || r.Denom().BitLen() > mostBits {
		return quantity{near: complex(f, 0)}
	}
	return quantity{r, complex(f, 0)}
}

// mostBits bounds the size of exact numbers.
const mostBits = 2048

func whole(n int64) quantity { return rational(big.NewRat(n, 1)) }

// equals compares exactly where both are exact, else to nine digits.
func (q quantity) equals(o quantity) bool {
	if q.exact != nil && o.exact != nil {
		return q.exact.Cmp(o.exact) == 0
	}
	if cmplx.IsNaN(q.near) || cmplx.IsInf(q.near) || cmplx.IsNaN(o.near) || cmplx.IsInf(o.near) {
		return false
	}
	return cmplx.Abs(q.near-o.near) <= 1e-9*max(1e-3, cmplx.Abs(q.near), cmplx.Abs(o.near))
}

func (q quantity) plus(o quantity) quantity {
	if q.exact != nil && o.exact != nil {
		return rational(new(big.Rat).Add(q.exact, o.exact))
	}
	return quantity{near: q.near + o.near}
}

func (q quantity) times(o quantity) quantity {
	if q.exact != nil && o.exact != nil {
		return rational(new(big.Rat).Mul(q.exact, o.exact))
	}
	return quantity{near: q.near * o.near}
}

func (q quantity) negated() quantity { return q.times(whole(-1)) }

func (q quantity) over(o quantity) (quantity, error) {
	if o.exact != nil && o.exact.Sign() == 0 || o.near == 0 {
		return quantity{}, errNotExpression
	}
	if q.exact != nil && o.exact != nil {
		return rational(new(big.Rat).Quo(q.exact, o.exact)), nil
	}
	return quantity{near: q.near / o.near}, nil
}

// mostExponent is the highest power that is computed exactly.
const mostExponent = 64

func (q quantity) to(o quantity) (quantity, error) {
	if q.exact != nil && o.exact != nil && o.exact.IsInt() && o.exact.Num().IsInt64() {
		n := o.exact.Num().Int64()
		if n >= -mostExponent && n <= mostExponent {
			out := whole(1)
			for range max(n, -n) {
				out = out.times(q)
			}
			if n < 0 {
				return whole(1).over(out)
			}
			return out, nil
		}
	}
	return quantity{near: cmplx.Pow(q.near, o.near)}, nil
}

func (q quantity) root(n int64) quantity {
	if q.exact != nil && n == 2 && q.exact.Sign() >= 0 {
		num, den := new(big.Int).Sqrt(q.exact.Num()), new(big.Int).Sqrt(q.exact.Denom())
		r := new(big.Rat).SetFrac(num, den)
		if new(big.Rat).Mul(r, r).Cmp(q.exact) == 0 {
			return rational(r)
		}
	}
	if f := real(q.near); imag(q.near) == 0 && f < 0 && n%2 == 1 {
		return quantity{near: complex(-math.Pow(-f, 1/float64(n)), 0)}
	}
	return quantity{near: cmplx.Pow(q.near, complex(1/float64(n), 0))}
}

var errNotExpression = errors.New("not an expression that is understood")

// expression is a text that is being evaluated from left to right.
type expression struct {
	s     string
	at    int
	depth int
	seed  float64 // variables have values made of it
}

// mostNesting bounds the recursion.
const mostNesting = 60

func evaluate(s string, seed float64) (quantity, error) {
	e := &expression{s: s, seed: seed}
	q, err := e.sum()
	e.skip()
	if err == nil && e.at < len(e.s) {
		err = errNotExpression
	}
	return q, err
}

func (e *expression) skip() {
	for e.at < len(e.s) && e.s[e.at] == ' ' {
		e.at++
	}
}

// take consumes a text if it comes next.
func (e *expression) take(text string) bool {
	e.skip()
	if !strings.HasPrefix(e.s[e.at:], text) {
		return false
	}
	end := e.at + len(text)
	if text[0] == '\\' && end < len(e.s) && letter(e.s[end]) {
		return false // the beginning of a longer command
	}
	e.at = end
	return true
}

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
func digit(c byte) bool  { return c >= '0' && c <= '9' }

// next is the next character, 0 at the end.
func (e *expression) next() byte {
	e.skip()
	if e.at == len(e.s) {
		return 0
	}
	return e.s[e.at]
}

func (e *expression) sum() (quantity, error) {
	if e.depth++; e.depth > mostNesting {
		return quantity{}, errNotExpression
	}
	defer func() { e.depth-- }()
	total, err := e.product()
	for err == nil {
		var q quantity
		switch {
		case e.take("+"):
			q, err = e.product()
		case e.take("-"):
			q, err = e.product()
			if err == nil {
				q = q.negated()
			}
		default:
			return total, nil
		}
		if err == nil {
			total = total.plus(q)
		}
	}
	return quantity{}, err
}

func (e *expression) product() (quantity, error) {
	total, err := e.signed()
	for err == nil {
		var q quantity
		switch {
		case e.take(`\cdot`), e.take(`\times`), e.take("*"):
			if q, err = e.signed(); err == nil {
				total = total.times(q)
			}
		case e.take("/"), e.take(`\div`):
			if q, err = e.signed(); err == nil {
				total, err = total.over(q)
			}
		case e.begins():
			if q, err = e.power(); err == nil {
				total = total.times(q)
			}
		default:
			return total, nil
		}
	}
	return quantity{}, err
}

// begins reports whether a factor without a sign of multiplication comes next. A
// number behind something is not one.
func (e *expression) begins() bool {
	c := e.next()
	if c == '\\' {
		for _, known := range []string{`\frac`, `\sqrt`, `\pi`, `\sin`, `\cos`, `\tan`, `\log`, `\ln`, `\theta`, `\alpha`, `\beta`, `\infty`} {
			if strings.HasPrefix(e.s[e.at:], known) {
				return true
			}
		}
		return false
	}
	return letter(c) || c == '(' || c == '{' || c == '['
}

func (e *expression) signed() (quantity, error) {
	if e.depth++; e.depth > mostNesting {
		return quantity{}, errNotExpression
	}
	defer func() { e.depth-- }()
	switch {
	case e.take("-"):
		q, err := e.signed()
		if err != nil {
			return q, err
		}
		return q.negated(), nil
	case e.take("+"):
		return e.signed()
	}
	return e.power()
}

func (e *expression) power() (quantity, error) {
	base, err := e.primary()
	if err != nil {
		return base, err
	}
	for e.take("!") {
		n := base.exact
		if n == nil || !n.IsInt() || n.Sign() < 0 || n.Cmp(big.NewRat(170, 1)) > 0 {
			return base, errNotExpression
		}
		base = rational(new(big.Rat).SetInt(new(big.Int).MulRange(1, n.Num().Int64())))
	}
	if !e.take("^") {
		return base, nil
	}
	var exponent quantity
	if e.next() == '{' {
		exponent, err = e.group('{', '}')
	} else {
		exponent, err = e.signed()
	}
	if err != nil {
		return base, err
	}
	return base.to(exponent)
}

func (e *expression) group(open, end byte) (quantity, error) {
	if !e.take(string(open)) {
		return quantity{}, errNotExpression
	}
	q, err := e.sum()
	if err == nil && !e.take(string(end)) {
		err = errNotExpression
	}
	return q, err
}

func (e *expression) primary() (quantity, error) {
	c := e.next()
	switch {
	case digit(c) || c == '.':
		return e.number()
	case c == '(':
		return e.group('(', ')')
	case c == '[':
		return e.group('[', ']')
	case c == '{':
		return e.group('{', '}')
	case c == '|':
		q, err := e.group('|', '|')
		return quantity{near: complex(cmplx.Abs(q.near), 0)}.exactly(q), err
	case c == '\\':
		return e.command()
	case letter(c):
		e.at++
		if c == 'i' {
			return quantity{near: 1i}, nil
		}
		if e.at < len(e.s) && e.s[e.at] == '_' {
			return quantity{}, errNotExpression
		}
		return e.variable(int(c)), nil
	}
	return quantity{}, errNotExpression
}

// exactly keeps the absolute value of an exact number exact.
func (q quantity) exactly(of quantity) quantity {
	if of.exact != nil {
		return rational(new(big.Rat).Abs(of.exact))
	}
	return q
}

// variable is the value of a name.
func (e *expression) variable(name int) quantity {
	return quantity{near: complex(1+math.Abs(math.Sin(e.seed*float64(name)*12.9898)), 0)}
}

func (e *expression) command() (quantity, error) {
	switch {
	case strings.HasPrefix(e.s[e.at:], `\frac`):
		e.at += len(`\frac`)
		top, err := e.argument()
		if err != nil {
			return top, err
		}
		bottom, err := e.argument()
		if err != nil {
			return top, err
		}
		return top.over(bottom)
	case strings.HasPrefix(e.s[e.at:], `\sqrt`):
		e.at += len(`\sqrt`)
		n := int64(2)
		if e.next() == '[' {
			q, err := e.group('[', ']')
			if err != nil || q.exact == nil || !q.exact.IsInt() || !q.exact.Num().IsInt64() || q.exact.Sign() <= 0 {
				return q, errNotExpression
			}
			n = q.exact.Num().Int64()
		}
		q, err := e.argument()
		return q.root(n), err
	case e.take(`\pi`):
		return quantity{near: math.Pi}, nil
	}
	for name, f := range functions {
		if e.take(name) {
			q, err := e.power()
			return quantity{near: f(q.near)}, err
		}
	}
	for i, name := range []string{`\theta`, `\alpha`, `\beta`, `\infty`, `\phi`, `\omega`} {
		if e.take(name) {
			return e.variable(1000 + i), nil
		}
	}
	return quantity{}, errNotExpression
}

var functions = map[string]func(complex128) complex128{
	`\sin`: cmplx.Sin, `\cos`: cmplx.Cos, `\tan`: cmplx.Tan, `\ln`: cmplx.Log, `\log`: cmplx.Log10,
}

// argument is what \frac and \sqrt take: a group, a command, or one character.
func (e *expression) argument() (quantity, error) {
	switch c := e.next(); {
	case c == '{':
		return e.group('{', '}')
	case c == '(':
		return e.group('(', ')')
	case c == '\\':
		return e.command()
	case digit(c):
		e.at++
		return whole(int64(c - '0')), nil
	case letter(c):
		return e.primary()
	}
	return quantity{}, errNotExpression
}

var (
	numeral   = regexp.MustCompile(`^(?:\d{1,3}(?:,\d{3})+|\d*)(?:\.\d+)?`)
	repeating = regexp.MustCompile(`^(\d*)\.(\d*)\\(?:overline|bar)\{(\d+)\}`)
	mixed     = regexp.MustCompile(`^ ?\\frac(?:\{(\d+)\}\{(\d+)\}|(\d)(\d)|\{(\d+)\}(\d)|(\d)\{(\d+)\})`)
	mixedFlat = regexp.MustCompile(`^ (\d+)/(\d+)`)
	power10   = regexp.MustCompile(`^[eE]([-+]?\d{1,2})\b`)
)

// mostDigits bounds numbers.
const mostDigits = 300

// number reads a number, with a fraction behind it if it is a mixed one.
func (e *expression) number() (quantity, error) {
	rest := e.s[e.at:]
	if m := repeating.FindStringSubmatch(rest); m != nil && len(m[0]) < mostDigits {
		e.at += len(m[0])
		return repeated(m[1], m[2], m[3]), nil
	}
	text := numeral.FindString(rest)
	if text == "" || len(text) > mostDigits {
		return quantity{}, errNotExpression
	}
	e.at += len(text)
	r, ok := new(big.Rat).SetString(strings.ReplaceAll(text, ",", ""))
	if !ok {
		return quantity{}, errNotExpression
	}
	rest = e.s[e.at:]
	q := rational(r)
	if m := power10.FindStringSubmatch(rest); m != nil {
		e.at += len(m[0])
		ten, _ := new(big.Rat).SetString("1e" + m[1])
		return q.times(rational(ten)), nil
	}
	if !r.IsInt() {
		return q, nil
	}
	for _, pattern := range []*regexp.Regexp{mixed, mixedFlat} {
		if m := pattern.FindStringSubmatch(rest); m != nil && len(m[0]) < mostDigits {
			top, _ := new(big.Rat).SetString(first(m[1:], 0))
			bottom, _ := new(big.Rat).SetString(first(m[1:], 1))
			part, err := rational(top).over(rational(bottom))
			if err != nil {
				return q, err
			}
			e.at += len(m[0])
			return q.plus(part), nil
		}
	}
	return q, nil
}

// first returns the first or second of a pair, of which one pair is not empty.
func first(pairs []string, which int) string {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] != "" {
			return pairs[i+which]
		}
	}
	return "0"
}

// repeated is whole.fixed and then again and again the period.
func repeated(wholePart, fixed, period string) quantity {
	all, _ := new(big.Int).SetString("0"+wholePart+fixed+period, 10)
	start, _ := new(big.Int).SetString("0"+wholePart+fixed, 10)
	nines, _ := new(big.Int).SetString(strings.Repeat("9", len(period))+strings.Repeat("0", len(fixed)), 10)
	return rational(new(big.Rat).SetFrac(all.Sub(all, start), nines))
}
