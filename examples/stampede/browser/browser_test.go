// Package browser_test operates the page of examples/stampede with a browser.
package browser_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-rod/rod"
	"github.com/go-rod/rod/lib/input"
	"github.com/go-rod/rod/lib/launcher"
	"github.com/go-rod/rod/lib/proto"
	"github.com/golockers/locker/examples/stampede/internal/programtest"
	"github.com/golockers/locker/examples/stampede/internal/stampede"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	programtest.Main(m, func() int {
		stampede.CompiledIn = programtest.Compiled()
		return stampede.Main(nil)
	})
}

// openPage shows the page at url in a browser of its own. A script that fails, or anything that the browser refuses
// to load, fails the test.
func openPage(t *testing.T, url string) *rod.Page {
	t.Helper()
	l := launcher.New().Bin(testserver.Browser(t)).Leakless(false).Headless(true).Set("hide-scrollbars").UserDataDir(t.TempDir()).
		NoSandbox(os.Getuid() == 0)
	control, err := l.Launch()
	require.NoError(t, err)
	t.Cleanup(func() {
		l.Kill()
		l.Cleanup()
	})
	browser := rod.New().ControlURL(control)
	require.NoError(t, browser.Connect())
	page, err := browser.Page(proto.TargetCreateTarget{})
	require.NoError(t, err)
	page = page.Timeout(programtest.Long)
	watched := page.EachEvent(
		func(e *proto.RuntimeExceptionThrown) { t.Errorf("the page's script: %s", e.ExceptionDetails.Text) },
		func(e *proto.LogEntryAdded) {
			if e.Entry.Source != proto.LogLogEntrySourceNetwork { // the program may be gone
				t.Errorf("the browser: %s", e.Entry.Text)
			}
		})
	go watched()
	require.NoError(t, proto.LogEnable{}.Call(page))
	require.NoError(t, page.Navigate(url))
	require.NoError(t, page.WaitLoad())
	return page
}

// until waits for an expression of the page.
func until(t *testing.T, page *rod.Page, expression string) {
	t.Helper()
	var got string
	require.Eventually(t, func() bool {
		value, err := page.Eval("() => " + expression)
		if err != nil {
			got = err.Error()
			return false
		}
		got = value.Value.String()
		return value.Value.Bool()
	}, programtest.Long, 20*time.Millisecond, "%s: %s", expression, &got)
}

func text(t *testing.T, page *rod.Page, selector string) string {
	t.Helper()
	value, err := page.Eval("(s) => [...document.querySelectorAll(s)].map((e) => e.innerText).join('|')", selector)
	require.NoError(t, err)
	return value.Value.Str()
}

func press(t *testing.T, page *rod.Page, selector string, key input.Key) {
	t.Helper()
	_, err := page.Eval("(s) => document.querySelector(s).focus()", selector)
	require.NoError(t, err)
	require.NoError(t, page.Keyboard.Type(key))
}

// The page shows rounds, and is operated with the keyboard alone.
func TestPage(t *testing.T) {
	t.Parallel()
	p, url := programtest.StartPage(t, "-processes", "2", "-goroutines", "8", "-load", "30ms")
	page := openPage(t, url)
	until(t, page, `document.getElementById("callers").textContent === "16 callers in 2 processes"`)
	require.Equal(t, "no protection|in-process only|lock only|layered|without a cache|failing source", text(t, page, "h2"))

	until(t, page, `/^Round ([2-9]|\d\d)/.test(document.getElementById("summary").textContent)`)
	require.Regexp(t, `^Round \d+, database queries: no protection \d+, in-process only [12], lock only 1, layered 1, without a cache 1, failing source [12]\.$`,
		text(t, page, "#summary"))
	const layered = "section:nth-child(4) "
	require.Equal(t, "1", text(t, page, layered+".queries dd"))
	require.Regexp(t, `^\d+ ms$`, text(t, page, layered+".last dd"))
	require.Regexp(t, `^1 a round in \d+ rounds$`, text(t, page, layered+"figcaption"))

	press(t, page, "#play", input.Space)
	until(t, page, `document.getElementById("play").textContent === "Play"`)
	press(t, page, "#goroutines", input.ArrowRight)
	press(t, page, "#load", input.End)
	until(t, page, `document.getElementById("callers").textContent === "18 callers in 2 processes"`)
	require.Equal(t, "3.00 s", text(t, page, "#load-value"))

	// A query takes seconds now, so that the browser sees one that is under way.
	press(t, page, "#another", input.Enter)
	until(t, page, `[...document.querySelectorAll("section:first-child li")].every((row) =>
		row.querySelector(".count").textContent === "9 waiting, 9 queries" && row.querySelector(".loading").clientWidth > 0)`)

	require.NoError(t, p.Process.Signal(os.Interrupt))
	require.Zero(t, p.Status(t), "%s", &p.Err)
	until(t, page, `document.getElementById("problem").textContent.startsWith("The program does not answer")`)
	p.RequireNothingLeft(t)
}

// contrast is the least contrast of a text to what is behind it, as WCAG defines it.
const contrast = `() => {
	const channels = (color) => color.match(/[\d.]+/g).map(Number);
	const light = (color) => channels(color).slice(0, 3)
		.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4))
		.reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
	const behind = (node) => {
		const color = getComputedStyle(node).backgroundColor, alpha = channels(color)[3] ?? 1;
		return alpha > 0 ? color : behind(node.parentElement);
	};
	let least = { ratio: 21 };
	for (const node of document.body.querySelectorAll("*")) {
		if (![...node.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim()) || node.tagName === "TEMPLATE") continue;
		const [a, b] = [light(getComputedStyle(node).color), light(behind(node))];
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < least.ratio) least = { ratio, text: node.textContent };
	}
	return least;
}`

// The page fits a phone, is legible in light and in dark, and has a name for all that can be operated.
func TestPageForEveryone(t *testing.T) {
	t.Parallel()
	_, url := programtest.StartPage(t, "-processes", "2", "-goroutines", "3", "-load", "1ms")
	page := openPage(t, url)
	until(t, page, `document.getElementById("summary").textContent !== ""`)

	for _, width := range []int{320, 700, 1400} {
		require.NoError(t, page.SetViewport(&proto.EmulationSetDeviceMetricsOverride{
			Width: width, Height: 800, DeviceScaleFactor: 1, Mobile: width < 500,
		}))
		value, err := page.Eval(`() => document.documentElement.scrollWidth`)
		require.NoError(t, err)
		assert.LessOrEqual(t, value.Value.Int(), width, "the page is wider than the window")
	}
	backgrounds := map[string]bool{}
	for _, scheme := range []string{"light", "dark"} {
		require.NoError(t, proto.EmulationSetEmulatedMedia{Features: []*proto.EmulationMediaFeature{
			{Name: "prefers-color-scheme", Value: scheme},
		}}.Call(page))
		least, err := page.Eval(contrast)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, least.Value.Get("ratio").Num(), 4.5, "%s: %v", scheme, least.Value)
		background, err := page.Eval(`() => getComputedStyle(document.body).backgroundColor`)
		require.NoError(t, err)
		backgrounds[background.Value.Str()] = true
	}
	assert.Len(t, backgrounds, 2)

	tree, err := proto.AccessibilityGetFullAXTree{}.Call(page)
	require.NoError(t, err)
	names := map[string][]string{}
	for _, node := range tree.Nodes {
		if !node.Ignored && node.Role != nil && node.Name != nil {
			role := node.Role.Value.Str()
			names[role] = append(names[role], node.Name.Value.Str())
		}
	}
	assert.Equal(t, []string{"Callers in each process", "Time of a database query"}, names["slider"])
	assert.Equal(t, []string{"Pause", "One round"}, names["button"])
	assert.Equal(t, []string{"no protection", "in-process only", "lock only", "layered", "without a cache", "failing source"}, names["region"])
	assert.Len(t, names["status"], 1)
	assert.Len(t, names["alert"], 1)
}

// pictureVariable in the environment names a directory for pictures of the page.
const pictureVariable = "STAMPEDE_PICTURES"

// Takes the picture in README.md, in the middle of a round of the last strategy.
func TestPicture(t *testing.T) {
	dir := os.Getenv(pictureVariable)
	if dir == "" {
		t.Skipf("%s is not set", pictureVariable)
	}
	_, url := programtest.StartPage(t)
	page := openPage(t, url)
	require.NoError(t, page.SetViewport(&proto.EmulationSetDeviceMetricsOverride{
		Width: 740, Height: 1000, DeviceScaleFactor: 1.5,
	}))
	until(t, page, `/^Round ([3-9]|\d\d)/.test(document.getElementById("summary").textContent)`)
	until(t, page, `document.querySelector("section:last-child").innerText.includes("50 waiting, 1 query")`)
	picture, err := page.Screenshot(true, nil)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "stampede.png"), picture, 0o666))
}
