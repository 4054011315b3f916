package conformance

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRules compares the sentences in rules.go with the documentation of the interfaces: together, in
// their order, those of a number are what is documented, and nothing that is documented is missing.
func TestRules(t *testing.T) {
	t.Parallel()
	documented := documentation(t, "../locker.go")
	maps.Copy(documented, documentation(t, "../inspect.go"))
	stated := make(map[string][]string) // by number, or by letter where only the method's text has an order
	for _, rule := range statedRules(t) {
		number, text, ok := strings.Cut(rule, " ")
		require.True(t, ok, rule)
		if number[0] != 'C' {
			number = number[:1]
		}
		stated[number] = append(stated[number], text)
	}
	for number, text := range documented {
		assert.Equal(t, text, strings.Join(stated[number], " "), "rule %s", number)
	}
	for number := range stated {
		assert.Contains(t, documented, number, "no rule of this number is documented")
	}
}

// Every sentence is cited by a check, or there is a reason why it cannot be.
func TestEveryRuleIsChecked(t *testing.T) {
	t.Parallel()
	cannot := map[string]string{
		c4Unit:        "defines a word",
		c9RollBack:    "permits something",
		c11Foreign:    "only the adapter's own tests know what a foreign value is",
		w6Resumed:     "permits something",
		q1Turns:       "a Locker that keeps one queue for all callers is no less correct, as far as waiters can tell",
		q4Shared:      "a waiter cannot tell whose request has failed",
		q10NotHeld:    "says what an error does not mean",
		f5Unsupported: "the checks of a Locker without fencing numbers are skipped",
		i2Tools:       "gives advice",
		i4Foreign:     "only the adapter's own tests know what a foreign value is",
		l3Meanwhile:   "permits something",
		l5Unsupported: "the checks of a Locker that cannot enumerate are skipped",
	}
	cited := make(map[string]bool)
	for _, ck := range checks() {
		for _, rule := range ck.Rules {
			cited[rule] = true
		}
	}
	for _, rule := range statedRules(t) {
		_, excused := cannot[rule]
		assert.NotEqual(t, cited[rule], excused, "either cited or excused: %s", rule)
	}
}

// statedRules returns the constants of rules.go in their order.
func statedRules(t *testing.T) (rules []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "rules.go", nil, 0)
	require.NoError(t, err)
	for _, decl := range file.Decls {
		for _, spec := range decl.(*ast.GenDecl).Specs {
			for _, v := range spec.(*ast.ValueSpec).Values {
				rules = append(rules, constant(t, v))
			}
		}
	}
	return rules
}

// constant returns the value of a sum of string literals.
func constant(t *testing.T, e ast.Expr) string {
	t.Helper()
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return constant(t, e.X) + constant(t, e.Y)
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		require.NoError(t, err)
		return s
	}
	require.Fail(t, "not a string constant")
	return ""
}

// documentation returns the contract: the list of C rules by number, and the texts of the
// interfaces and their methods by letter.
func documentation(t *testing.T, name string) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
	require.NoError(t, err)
	link := regexp.MustCompile(`\[([\w.]+)\]`)
	plain := func(s string) string { return link.ReplaceAllString(strings.Join(strings.Fields(s), " "), "$1") }
	texts := make(map[string]string)
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE {
			continue
		}
		spec := gen.Specs[0].(*ast.TypeSpec)
		in, ok := spec.Type.(*ast.InterfaceType)
		if !ok {
			continue
		}
		if spec.Name.Name == "Locker" {
			for _, item := range strings.Split(gen.Doc.Text(), "\n  - ")[1:] {
				number, text, _ := strings.Cut(plain(item), " ")
				texts[number] = text
			}
		}
		letters := map[string]string{"Acquire": "A", "Extend": "E", "Release": "R", "Watch": "W", "Wait": "Q", "Fence": "F",
			"Inspect": "I", "List": "L"}
		for _, m := range in.Methods.List {
			if len(m.Names) == 0 {
				continue // the embedded Locker
			}
			text := plain(m.Doc.Text())
			if spec.Name.Name != "Locker" {
				text = plain(gen.Doc.Text()) + " " + text
			}
			texts[letters[m.Names[0].Name]] = text
		}
	}
	return texts
}
