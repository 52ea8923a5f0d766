package grade

import (
	"strings"
	"testing"
)

func TestTheFinalAnswerIsFound(t *testing.T) {
	for text, want := range map[string]string{
		// a comma or a period behind the number
		"That makes 46 apples, all told.": "46", "#### 46,": "46", "So 12 is it.": "12", "It costs $1,234.50.": "$1,234.50",
		// thousands separators
		`\boxed{6,000}`: "6,000", `\boxed{\$4{,}250}`: `\$4{,}250`, "So it is 1,234,500.": "1,234,500",
		// boxes: nested, with a space, other names, taken back, twice, cut off, empty
		`\boxed{\frac{1}{2}}`: `\frac{1}{2}`, `\boxed{\sqrt{2^{10}}}`: `\sqrt{2^{10}}`, `\boxed {7}`: "7", `\fbox{7}`: "7", `so \boxed 7.`: "7",
		`so \boxed{2}. Wait, that is wrong. The answer is \boxed{3}.`: "3", `\boxed{5} ... again \boxed{5}`: "5",
		`\boxed{4} and then \boxed{\frac{1}{`: "4", `\boxed{} but 9`: "9", `\boxed{\{1,2\}}`: `\{1,2\}`, `\boxed{\text{(C)}}`: `\text{(C)}`,
		// hashes: recited, without a space, emphasised, with a currency; headings are none
		"#### 5\nQuestion two\n#### 18": "18", "####18": "18", "#### **18**": "18", "#### $18": "18", "#### -3": "-3", "#### 1/2": "1/2",
		"#### Step 2: add\n3 + 4 = 7": "7", "#### 1. Add them\nThat makes 9.": "9", "##### 3 things\nSo 8": "8", "#### 18 dollars": "18", "#### x = 5": "x = 5",
		"#### Final answer\n\n42": "42",
		// phrases
		"The answer is 42.": "42", "**Answer:** 42": "42", "The final answer is: $\\frac{3}{4}$. I hope it is correct.": `\frac{3}{4}`,
		"The answer is that she has 46 apples in 3 bags.": "46", "The answer is 5 + 3 = 8.": "8", "The answer is $18 per day, of 5 days.": "18",
		"The answer is Monday.": "Monday", "The answer is (B).": "(B)", "答案是 12。": "12", "answer: \\(x^2+1\\)": "x^2+1", "The answer to the second is **1,000**": "1,000",
		"Let me restate the Question in my words. The answer is 4": "4",
		// the last number; a minus between numbers is none of its sign
		"We compute 16 - 3 = 13": "13", "10-5": "5", "it is -5 degrees": "-5", "5 (-3)": "-3", "it fell by 2 1/2": "2 1/2", "50%": "50%",
		// notes and thoughts
		"She has $<<2+3=5>>5": "$5", "<think>maybe \\boxed{3}</think>It is 4.": "4", "<think>\\boxed{3}</think>Done.": "3",
	} {
		if got, _, ok := Extract(text, ""); !ok || got != want {
			t.Errorf("%q: %q, %v; want %q", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "I do not know.", "####", `\boxed{`, `\boxed{\frac{1`} {
		if got, by, ok := Extract(text, ""); ok && (by != Number || !strings.HasSuffix(text, got)) {
			t.Errorf("%q: found %q", text, got)
		}
	}
	if got, _, _ := Extract("12 and 3\nA: 26", "A:"); got != "26" {
		t.Errorf("behind a marker: %q", got)
	}
}

func TestReferencesAreFound(t *testing.T) {
	for text, want := range map[string]string{
		"a\n#### 1,234,500": "1,234,500", "#### 1234500": "1234500", "x <<2469*500=1234500>>1234500\n#### 1234500": "1234500",
		`So $x = \boxed{\frac{1}{2}}$.`: `\frac{1}{2}`, " 18 ": "18", `\text{Monday}`: `\text{Monday}`,
	} {
		if got := Gold(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestThreeOutcomes(t *testing.T) {
	for text, want := range map[string]Outcome{`\boxed{0.5}`: Right, `\boxed{0.6}`: Wrong, "no idea": Missing, "": Missing} {
		if got, _ := Grade(text, "half is\n#### 1/2", ""); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// pairs of values, equal in the first list and not in the second, by the rules that
// MATH's authors and the common checkers publish; a few go further where those give
// up (sums in another order, sets).
var equalPairs = [][2]string{
	// integers, signs, separators, decimals
	{"6,000", "6000"},
	{`\$4{,}250`, "4250"},
	{"1,234,500", "1234500"},
	{`1\,234`, "1234"},
	{`10{,}000`, "10000"},
	{"12 345", "12345"},
	{"-7", "−7"},
	{"+3", "3"},
	{"007", "7"},
	{"3.0", "3"},
	{"0.50", ".5"},
	{"2.", "2"},
	{"-0", "0"},
	{"1e3", "1000"},
	{"18.00", "18"},
	{"$18", "18"},
	{"€18", "18"},
	{`18\$`, "18"},
	{"1,000.50", "1000.5"},
	// fractions
	{`\dfrac{1}{2}`, `\frac{1}{2}`},
	{`\tfrac{1}{2}`, `\frac{1}{2}`},
	{`\frac12`, `\frac{1}{2}`},
	{"1/2", `\frac{1}{2}`},
	{"0.5", `\frac{1}{2}`},
	{`\frac1{2}`, "0.5"},
	{`\frac{1}2`, "0.5"},
	{`\frac{2}{4}`, `\frac{1}{2}`},
	{`-\frac{1}{2}`, `\frac{-1}{2}`},
	{`\frac{1}{-2}`, "-0.5"},
	{`\frac{10}{3}`, "10/3"},
	{`{1}/{3}`, `\frac13`},
	{`\frac{3}{1}`, "3"},
	{"0.125", "1/8"},
	{`\frac{1,000}{3}`, `\frac{1000}{3}`},
	{`\cfrac{7}{8}`, "0.875"},
	{"½", "0.5"},
	{`0.\overline{3}`, `\frac13`},
	{`1.2\overline{7}`, `\frac{23}{18}`},
	{`0.1\bar{6}`, "1/6"},
	// mixed numbers
	{`1\frac{1}{2}`, `\frac{3}{2}`},
	{"1 1/2", "1.5"},
	{`-1\frac12`, "-1.5"},
	{`2 \frac{3}{4}`, "11/4"},
	{`3\dfrac{1}{3}`, `\frac{10}{3}`},
	{`10\frac1{4}`, "10.25"},
	// units, percent, degrees, currency
	{`48\text{ kg}`, "48"},
	{`20\%`, "20"},
	{"20%", "20"},
	{`90^\circ`, "90"},
	{`90^{\circ}`, "90"},
	{"90°", "90"},
	{"18 dollars", "18"},
	{"5 cm", "5"},
	{`5\text{ cm}^2`, "5"},
	{`5\,\mathrm{cm}^{2}`, "5"},
	{"60 miles per hour", "60"},
	{`\frac{1}{2}\text{ cup}`, "0.5"},
	{`10\sqrt{3}\text{ units}`, `10\sqrt{3}`},
	{`36\pi\text{ square inches}`, `36\pi`},
	{"120 square units", "120"},
	{`\$3.50`, "3.5"},
	{`7\mbox{ cm}`, "7"},
	{"3 hours", "3"},
	{"90 degrees", "90"},
	{"5 ft^2", "5"},
	{`25\text{ m/s}`, "25"},
	{"12 apples.", "12"},
	// roots, powers, constants
	{`\sqrt{4}`, "2"},
	{`\sqrt2`, `\sqrt{2}`},
	{`2\sqrt{3}`, `\sqrt{12}`},
	{`\sqrt[3]{8}`, "2"},
	{`\frac{\sqrt{2}}{2}`, `\frac{1}{\sqrt{2}}`},
	{`2^{10}`, "1024"},
	{"2^10", "1024"},
	{`\pi`, "π"},
	{`2\pi`, `\pi \cdot 2`},
	{`\frac{\pi}{4}`, `\pi/4`},
	{`1.5\times 10^3`, "1500"},
	{`3 \cdot 4`, "12"},
	{"5!", "120"},
	{`|{-3}|`, "3"},
	{"sqrt(9)", "3"},
	{`\sqrt{\frac{1}{4}}`, "0.5"},
	{`(1+i)^2`, "2i"},
	{`2^{-1}`, "0.5"},
	{`8^{1/3}`, "2"},
	{`\log 100`, "2"},
	// expressions
	{"x+1", "1+x"},
	{"2x", `2\cdot x`},
	{"xy", "yx"},
	{"(x+1)^2", "x^2+2x+1"},
	{`\frac{x}{2}`, "x/2"},
	{`\frac{x+1}{2}`, `\frac{1}{2}(x+1)`},
	{"x^2 - y^2", "(x-y)(x+y)"},
	{`\sin^2`, `\sin^2`},
	{`3x^{2}`, "3x^2"},
	{"ab+c", "c+ba"},
	// names and equations
	{"x = 5", "5"},
	{"y=2x+3", "2x+3"},
	{"f(x) = x^2", "x^2"},
	{"x^2+y^2=25", "x^2 + y^2 = 25"},
	{"25 = x^2+y^2", "x^2+y^2=25"},
	{`x \in [1,2]`, "[1,2]"},
	{`x\ge 3`, `3 \le x`},
	{"x>2", "2<x"},
	{`1 < x \leq 4`, `1<x\le4`},
	{"x_1 = 4", "4"},
	// tuples, intervals, sets, lists
	{"(1,2)", "( 1, 2 )"},
	{`\left(1,2\right)`, "(1,2)"},
	{`(\frac{1}{2}, 3)`, "(0.5, 3)"},
	{`[0,\infty)`, `[0, \infty)`},
	{`(-\infty, 2]`, `(-∞,2]`},
	{`\{1,2,3\}`, `\{3,2,1\}`},
	{"1, 2", "2, 1"},
	{"1 and 2", "1, 2"},
	{`1\text{ or }2`, "2,1"},
	{`\left\{1,2\right\}`, "1,2"},
	{`(-\infty,0)\cup(1,2)`, `(1,2) \cup (-\infty,0)`},
	{`\pm 2`, "2, -2"},
	{`1 \pm \sqrt{2}`, `1+\sqrt2, 1-\sqrt2`},
	{"(1,-2,3)", "(1, -2, 3.0)"},
	{`\{\frac12, 0.25\}`, `\{1/4, 1/2\}`},
	{"x=1, x=2", "1,2"},
	{"(1,2), (3,4)", "(3,4),(1,2)"},
	{`\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}`, `\begin{pmatrix}1&2\\3&4\end{pmatrix}`},
	{`\begin{pmatrix} 1/2 \\ 3 \end{pmatrix}`, `\begin{pmatrix} 0.5 \\ 3.0 \end{pmatrix}`},
	// words and choices
	{`\text{Monday}`, "Monday"},
	{"monday", "Monday"},
	{`\text{(C)}`, "C"},
	{"(C)", "C"},
	{`\textbf{B}`, "B"},
	{"the circle", "circle"},
	{`\text{even}`, "even."},
	{`\mathrm{no}`, "no"},
	{"**12**", "12"},
	{"$x$", "x"},
	{`\(7\)`, "7"},
	{"{7}", "7"},
	{"Tuesday。", "Tuesday"},
	{`\emptyset`, `\varnothing`},
	{`101_2`, `101_{2}`},
	{`\text{A, B}`, "B, A"},
}

var unequalPairs = [][2]string{
	{`\frac{1}{2}`, `\frac{1}{3}`},
	{"0.33", `\frac{1}{3}`},
	{`20\%`, "0.2"},
	{"20%", "1/5"},
	{"6,000", "6"},
	{"6,000", "0"},
	{"1,234", "234"},
	{"-5", "5"},
	{"5", "50"},
	{"1", "10"},
	{"3.14", `\pi`},
	{"1.41", `\sqrt{2}`},
	{"12", "21"},
	{`1\frac{1}{2}`, "0.5"},
	{`2\frac12`, "1"},
	{"1 1/2", "5.5"},
	{`\sqrt{2}`, "2"},
	{`\sqrt{2}`, `\sqrt{3}`},
	{`2\pi`, "2"},
	{"2^3", "6"},
	{"2^{10}", "20"},
	{"(1,2)", "(2,1)"},
	{"(1,2)", "[1,2]"},
	{"(1,2]", "(1,2)"},
	{"(1,2)", "(1,2,3)"},
	{"(1,2)", "12"},
	{`\{1,2\}`, `\{1,3\}`},
	{`\{1,2\}`, `\{1,2,3\}`},
	{"1, 2", "1"},
	{"1,1", "1,2"},
	{`\pm 2`, "2"},
	{`(-\infty,0)\cup(1,2)`, `(-\infty,0)\cup(1,3)`},
	{"x+1", "x+2"},
	{"x", "y"},
	{"2x", "x^2"},
	{"(x+1)^2", "x^2+1"},
	{"x>2", `x \ge 2`},
	{"x>2", "x<2"},
	{"x>2", "2>x"},
	{"Monday", "Tuesday"},
	{"A", "B"},
	{"(A)", "(B)"},
	{"even", "odd"},
	{"listen", "silent"},
	{"5 cm", "6 cm"},
	{"2 hours 30 minutes", "2"},
	{"", "0"},
	{"1/0", "1/0.0"},
	{`\begin{pmatrix}1&2\\3&4\end{pmatrix}`, `\begin{pmatrix}1&3\\2&4\end{pmatrix}`},
	{`\begin{pmatrix}1&2\end{pmatrix}`, `\begin{pmatrix}1\\2\end{pmatrix}`},
	{"101_2", "101"},
	{"1000000007", "1000000008"},
	{"0.9999999999", "1"},
	{`0.\overline{3}`, "0.3"},
	{"x^2+y^2=25", "x^2+y^2=24"},
	{"2i", "2"},
	{"-3", `\frac{1}{3}`},
	{"18", "18.5"},
	{"yes", "no"},
	{"10", "1e2"},
}

func TestEquivalence(t *testing.T) {
	if n := len(equalPairs) + len(unequalPairs); n < 150 {
		t.Errorf("%d pairs", n)
	}
	for _, p := range equalPairs {
		if !Equal(p[0], p[1]) || !Equal(p[1], p[0]) {
			t.Errorf("%q is not %q (%q, %q)", p[0], p[1], clean(p[0]), clean(p[1]))
		}
	}
	for _, p := range unequalPairs {
		if Equal(p[0], p[1]) || Equal(p[1], p[0]) {
			t.Errorf("%q equals %q (%q, %q)", p[0], p[1], clean(p[0]), clean(p[1]))
		}
	}
	for _, p := range append(equalPairs, unequalPairs...) {
		for _, v := range p {
			if v != "" && !Equal(v, v) {
				t.Errorf("%q does not equal itself", v)
			}
		}
	}
}

func FuzzGrade(f *testing.F) {
	for _, p := range append(equalPairs, unequalPairs...) {
		f.Add(p[0], p[1])
	}
	f.Add(`so \boxed{\frac{1}{2}}. The answer is 3 #### 1,234`, "#### 1 1/2")
	f.Add(strings.Repeat("(", 200), strings.Repeat(`\frac`, 100))
	f.Add("9^9^9^9^9", "1e99")
	f.Fuzz(func(t *testing.T, a, b string) {
		if Equal(a, b) != Equal(b, a) {
			t.Errorf("%q and %q: equality depends on the order", a, b)
		}
		if !Equal(a, a) {
			t.Errorf("%q does not equal itself", a)
		}
		if outcome, found := Grade(a, b, "A:"); outcome == Missing && found != "" {
			t.Errorf("%q: missing, but found %q", a, found)
		}
		if strings.ContainsAny(a, `{}\`) {
			return
		}
		if got, by, ok := Extract(`text \boxed{`+a+`}`, ""); by == Mark && strings.TrimSpace(a) != "" && !strings.Contains(a, "<<") && !strings.Contains(a, "</think>") && !strings.Contains(a, "####") && (!ok || got != strings.TrimSpace(a)) {
			t.Errorf("box of %q holds %q", a, got)
		}
	})
}
