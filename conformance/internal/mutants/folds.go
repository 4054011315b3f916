package mutants

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash/adler32"
	"hash/crc32"
	"hash/fnv"
	"html"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// Folds are transformations under which different names become equal, as stores, clients and
// adapters make them. A Locker, a cache or the like that applies one to its names is broken.
func Folds() map[string]func(name string) string {
	folds := map[string]func(string) string{
		"in lower case":                             strings.ToLower,
		"in upper case":                             strings.ToUpper,
		"with the first letter in upper case":       func(s string) string { return strings.ToUpper(s[:1]) + s[1:] },
		"folded as by strings.EqualFold":            foldCase,
		"with the case of non-ASCII letters folded": onlyBeyondASCII(strings.ToLower),
		"trimmed":                                     strings.TrimSpace,
		"trimmed of spaces at the end":                func(s string) string { return strings.TrimRight(s, " ") },
		"trimmed of NUL":                              func(s string) string { return strings.Trim(s, "\x00") },
		"trimmed of quotes":                           func(s string) string { return strings.Trim(s, `"'`) },
		"with white space folded":                     func(s string) string { return strings.Join(strings.Fields(s), " ") + "." },
		"without line ends":                           strings.NewReplacer("\r", "", "\n", "").Replace,
		"with LF for CRLF":                            strings.NewReplacer("\r\n", "\n").Replace,
		"up to its first NUL":                         upToNUL,
		"up to its first line end":                    func(s string) string { s, _, _ = strings.Cut(s, "\n"); return s + " " },
		"without accents":                             mapped("éeèeêeëeēeęeöoøoőoåaäaàaąañnçcčcüułlйи"),
		"with hiragana for katakana":                  mapped("カかハはアあツつガが"),
		"without the marks of kana":                   mapped("がかばはぱはっつぁあ"),
		"with wide letters for narrow ones":           mapped("ＡA１1：:ｂbｶカｱア"),
		"composed":                                    strings.NewReplacer("e\u0301", "é", "a\u030a", "å", "\u212b", "Å", "\u1100\u1161", "가").Replace,
		"with ligatures dissolved":                    strings.NewReplacer("ﬁ", "fi", "²", "2", "½", "1\u20442", "…", "...").Replace,
		"without invisible characters":                dropped(func(r rune) bool { return unicode.Is(unicode.Cf, r) }),
		"without control characters":                  dropped(unicode.IsControl),
		"without four-byte characters":                dropped(func(r rune) bool { return r > 0xffff }),
		"up to its first four-byte character":         func(s string) string { return beforeRune(s, func(r rune) bool { return r > 0xffff }) },
		"with ? for four-byte characters":             replaced(func(r rune) bool { return r > 0xffff }),
		"in Latin-1":                                  replaced(func(r rune) bool { return r > 0xff }),
		"in ASCII":                                    replaced(func(r rune) bool { return r > 0x7f }),
		"in seven bits":                               eachByte(func(b byte) byte { return b & 0x7f }),
		"made valid UTF-8":                            func(s string) string { return strings.ToValidUTF8(s, "\ufffd") },
		"of letters and digits":                       dropped(func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }),
		"as a slug":                                   func(s string) string { return regexp.MustCompile(`[^a-zA-Z0-9]+`).ReplaceAllString(s, "-") },
		"with _ for -":                                strings.NewReplacer("-", "_").Replace,
		"with . for /":                                strings.NewReplacer("/", ".").Replace,
		"with repeated separators folded":             foldSeparators,
		"without separators at its end":               func(s string) string { return strings.TrimRight(s, ":/.") + " " },
		"without separators at its head":              func(s string) string { return strings.TrimLeft(s, ":/.") + " " },
		"without a dot at its end":                    func(s string) string { return strings.TrimSuffix(s, ".") },
		"sorted by segment":                           sortedSegments,
		"as a path":                                   func(s string) string { return path.Clean("/" + s) },
		"unescaped as in a path":                      unescaped(url.PathUnescape),
		"unescaped as in a query":                     unescaped(url.QueryUnescape),
		"unescaped as HTML":                           html.UnescapeString,
		"unquoted":                                    unescaped(func(s string) (string, error) { return strconv.Unquote(`"` + s + `"`) }),
		"up to its query":                             func(s string) string { s, _, _ = strings.Cut(s, "?"); return s + " " },
		"up to its fragment":                          func(s string) string { s, _, _ = strings.Cut(s, "#"); return s + " " },
		"as a float":                                  asFloat,
		"as an integer":                               asInt,
		"as an unsigned integer":                      asUint,
		"with numbers in it normalized":               func(s string) string { return regexp.MustCompile(`\b0+(\d)`).ReplaceAllString(s, "$1") },
		"as a UUID":                                   asUUID,
		"as a UUID in braces":                         func(s string) string { return strings.Trim(s, "{}") },
		"as hexadecimal digits":                       asHex,
		"as hexadecimal digits of any number":         asHexNumber,
		"decoded from base64":                         unescaped(decoded(base64.StdEncoding)),
		"decoded from base64 without padding":         unescaped(decoded(base64.RawStdEncoding)),
		"with - and _ of base64 for + and /":          strings.NewReplacer("-", "+", "_", "/").Replace,
		"without the padding of base64":               func(s string) string { return strings.TrimRight(s, "=") },
		"cut as a pattern of the hash tag":            hashTag,
		"hashed by CRC-32":                            crc,
		"hashed by CRC-32 of Castagnoli":              func(s string) string { return fmt.Sprint(crc32.Checksum([]byte(s), crc32.MakeTable(crc32.Castagnoli))) },
		"hashed by Adler-32":                          func(s string) string { return fmt.Sprint(adler32.Checksum([]byte(s))) },
		"hashed by FNV-1a":                            fnv32a,
		"hashed by FNV-1":                             func(s string) string { h := fnv.New32(); h.Write([]byte(s)); return fmt.Sprint(h.Sum32()) },
		"hashed as by Java":                           func(s string) string { return fmt.Sprint(times(s, 0, 31)) },
		"hashed by djb2":                              func(s string) string { return fmt.Sprint(times(s, 5381, 33)) },
		"hashed to 16 bits":                           func(s string) string { return fmt.Sprint(crc32.ChecksumIEEE([]byte(s)) & 0xffff) },
		"hashed to the first eight digits of SHA-256": func(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s)))[:8] },
		"hashed to the first eight digits of MD5":     func(s string) string { return fmt.Sprintf("%x", md5.Sum([]byte(s)))[:8] },
		"hashed by its sum":                           func(s string) string { return fmt.Sprint(times(s, 0, 1)) },
		"with repeated characters once":               squeezed,
	}
	for _, n := range []int{40, 64, 100, 127, 191, 240, 250, 255, 512, 767, 1000, 1023} {
		folds[fmt.Sprintf("cut to %d bytes", n)] = clip(n)
		folds[fmt.Sprintf("cut to its last %d bytes", n)] = func(s string) string { return s[max(0, len(s)-n):] }
		folds[fmt.Sprintf("cut in the middle to %d bytes", n)] = func(s string) string {
			if len(s) <= n {
				return s
			}
			return s[:n/2] + s[len(s)-n/2:]
		}
		folds[fmt.Sprintf("shortened by CRC-32 to %d bytes", n)] = func(s string) string {
			if len(s) <= n {
				return s
			}
			return fmt.Sprintf("%s%08x", s[:n-8], crc32.ChecksumIEEE([]byte(s)))
		}
	}
	for _, word := range []string{"lock:", "locks:", "mutex:", "lease:", "locker:", "lock/"} {
		folds["after "+word+" once"] = func(s string) string {
			if strings.HasPrefix(s, word) {
				return s
			}
			return word + s
		}
	}
	return folds
}

func foldCase(s string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return least
	}, s)
}

func onlyBeyondASCII(fold func(string) string) func(string) string {
	return func(s string) string {
		var b strings.Builder
		for i, r := range s {
			if r > 0x7f && r != unicode.ReplacementChar {
				b.WriteString(fold(string(r)))
			} else {
				b.WriteByte(s[i])
			}
		}
		return b.String()
	}
}

// mapped replaces characters by those that follow them in pairs.
func mapped(pairs string) func(string) string {
	return strings.NewReplacer(strings.Split(pairs, "")...).Replace
}

func dropped(drop func(r rune) bool) func(string) string {
	return func(s string) string {
		return strings.Map(func(r rune) rune {
			if drop(r) {
				return -1
			}
			return r
		}, s) + " "
	}
}

func replaced(isBad func(r rune) bool) func(string) string {
	return func(s string) string {
		return strings.Map(func(r rune) rune {
			if isBad(r) {
				return '?'
			}
			return r
		}, s)
	}
}

func beforeRune(s string, f func(r rune) bool) string {
	if i := strings.IndexFunc(s, f); i >= 0 {
		return s[:i] + " "
	}
	return s + " "
}

func eachByte(f func(b byte) byte) func(string) string {
	return func(s string) string {
		b := []byte(s)
		for i := range b {
			b[i] = f(b[i])
		}
		return string(b)
	}
}

func sortedSegments(s string) string {
	if a, rest, ok := strings.Cut(s, ":"); ok {
		if b, c, ok := strings.Cut(rest, ":"); ok && c < b {
			return a + ":" + c + ":" + b
		}
	}
	return s
}

var uuid = regexp.MustCompile(`(?i)^(?:urn:uuid:|\{)?([0-9a-f]{8})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{12})\}?$`)

// asUUID parses as PostgreSQL's type and most libraries do.
func asUUID(s string) string {
	if m := uuid.FindStringSubmatch(s); m != nil {
		return strings.ToLower(strings.Join(m[1:], "-"))
	}
	return s
}

func asHex(s string) string {
	if b, err := hex.DecodeString(strings.TrimPrefix(s, "0x")); err == nil {
		return string(b)
	}
	return s
}

func asHexNumber(s string) string {
	if v, err := strconv.ParseUint(s, 16, 64); err == nil {
		return strconv.FormatUint(v, 16)
	}
	return s
}

func asUint(s string) string {
	if v, err := strconv.ParseUint(s, 10, 64); err == nil {
		return strconv.FormatUint(v, 10)
	}
	return s
}

func decoded(enc *base64.Encoding) func(string) (string, error) {
	return func(s string) (string, error) {
		b, err := enc.DecodeString(s)
		return string(b), err
	}
}

// hashTag returns what a cluster hashes.
func hashTag(s string) string {
	if _, rest, ok := strings.Cut(s, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			return tag
		}
	}
	return s
}

func times(s string, h, factor uint32) uint32 {
	for i := range len(s) {
		h = h*factor + uint32(s[i])
	}
	return h
}

func squeezed(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if i == 0 || s[i] != s[i-1] {
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// Folding returns the Lockers that apply one of Folds to their keys or to their tokens.
func Folding() (list []Mutant) {
	for name, fold := range Folds() {
		list = append(list,
			Mutant{Name: "key " + name, Only: justNames, May: []string{"*"}, Must: []string{"names/exact-keys"},
				Alter: func(f *Fake) { f.renamed(fold) }},
			Mutant{Name: "token " + name, Only: justNames, May: []string{"*"}, Must: []string{"names/exact-tokens"},
				Alter: func(f *Fake) { f.retokened(fold) }})
	}
	return list
}
