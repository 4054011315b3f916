package doctest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every relative link and picture in a page leads to a file, and to a heading if it names one.
func TestLinks(t *testing.T) {
	t.Parallel()
	root := os.DirFS("../..")
	links := regexp.MustCompile(`(?:\]\(|<img src=")([^)"\s]+)[)"]`)
	found := 0
	err := fs.WalkDir(root, ".", func(page string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(page, ".md") {
			return err
		}
		text, err := fs.ReadFile(root, page)
		if err != nil {
			return err
		}
		for _, match := range links.FindAllStringSubmatch(string(text), -1) {
			link := match[1]
			if strings.Contains(link, "://") {
				continue
			}
			found++
			target, heading, hasHeading := strings.Cut(link, "#")
			name := page
			if target != "" {
				name = filepath.ToSlash(filepath.Join(filepath.Dir(page), target))
			}
			_, err := fs.Stat(root, name)
			if assert.NoError(t, err, "%s links to %s", page, link) && hasHeading {
				assert.Contains(t, headings(t, root, name), heading, "%s links to %s", page, link)
			}
		}
		return nil
	})
	require.NoError(t, err)
	assert.Greater(t, found, 30, "links are written in another way")
}

// Every link from the documentation of a package to a page leads there.
func TestLinksInGo(t *testing.T) {
	t.Parallel()
	root := os.DirFS("../..")
	links := regexp.MustCompile(`https://github\.com/golockers/locker/(?:blob|tree)/main/([^\s#)]+)(?:#([^\s)]+))?`)
	linked := map[string]bool{}
	err := fs.WalkDir(root, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(root, file)
		if err != nil {
			return err
		}
		for _, match := range links.FindAllStringSubmatch(string(text), -1) {
			page, heading := match[1], match[2]
			linked[page] = true
			_, err := fs.Stat(root, page)
			if assert.NoError(t, err, "%s links to %s", file, page) && heading != "" {
				assert.Contains(t, headings(t, root, page), heading, "%s links to %s", file, page)
			}
		}
		return nil
	})
	require.NoError(t, err)

	// The index has every page, and the documentation of the packages every page of the index.
	index, err := fs.ReadFile(root, "docs/README.md")
	require.NoError(t, err)
	pages, err := fs.Glob(root, "docs/*.md")
	require.NoError(t, err)
	for _, page := range pages {
		if name := filepath.Base(page); name != "README.md" {
			assert.Contains(t, string(index), "]("+name+")", "the index of docs")
		}
		assert.True(t, linked[page], "no package's documentation links to %s", page)
	}
}

// headings returns the names that GitHub gives to a page's headings.
func headings(t *testing.T, root fs.FS, page string) []string {
	t.Helper()
	text, err := fs.ReadFile(root, page)
	require.NoError(t, err)
	drop := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	var names []string
	for line := range strings.Lines(string(text)) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && line[0] == '#' {
			name := drop.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			names = append(names, strings.ReplaceAll(name, " ", "-"))
		}
	}
	return names
}

// CONTRIBUTING.md describes all files of the root package and all folders with code, and nothing else.
func TestLayout(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## Where things are\n")
	require.True(t, found, "no such section")
	section, _, _ = strings.Cut(section, "\n## ")
	root := os.DirFS("../..")
	var described []string
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cell, _, _ := strings.Cut(line[1:], "|")
		for name := range strings.SplitSeq(cell, ",") {
			name = strings.TrimSuffix(strings.Trim(name, " `"), "/")
			described = append(described, name)
			_, err := fs.Stat(root, name)
			assert.NoError(t, err)
		}
	}
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		isHidden := strings.HasPrefix(d.Name(), ".") && name != "."
		if err != nil || d.IsDir() && !isHidden {
			return err
		}
		if isHidden && d.IsDir() {
			return fs.SkipDir
		}
		if strings.HasSuffix(name, ".go") && !(strings.HasSuffix(name, "_test.go") && !strings.Contains(name, "/")) {
			assert.True(t, slices.ContainsFunc(described, func(place string) bool {
				return name == place || strings.HasPrefix(name, place+"/")
			}), "%s is not described", name)
		}
		return nil
	})
	require.NoError(t, err)
}
