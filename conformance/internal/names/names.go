// Package names has names that must stay apart although real stores, clients and adapters confuse
// them. It is one table for keys, tokens and prefixes, whatever kind of backend they are for.
package names

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Limit is the length of the longest name that every backend has to take.
const Limit = 1024

// Pair is two different names, of at most Limit bytes, that a transformation makes equal.
type Pair struct {
	Rule string // the transformation
	A, B string
}

// Pairs returns a pair for each form of each transformation. All names are different from those of
// another base, or with overwhelming probability so: most contain base, and the rest are random.
// Base has at most 100 bytes, of which the last is a lower-case letter from a to y.
func Pairs(base string) []Pair {
	var list []Pair
	add := func(rule string, names ...string) {
		for _, b := range names[1:] {
			if b != names[0] && len(b) <= Limit && len(names[0]) <= Limit {
				list = append(list, Pair{rule, names[0], b})
			}
		}
	}
	// ends adds names that have different text after base, each compared with the first.
	ends := func(rule string, texts ...string) {
		names := make([]string, len(texts))
		for i, text := range texts {
			names[i] = base + text
		}
		add(rule, names...)
	}
	for _, t := range texts {
		ends(t.rule, t.texts...)
	}
	add("folding of the case of ASCII", base, strings.ToUpper(base), strings.ToUpper(base[:1])+base[1:],
		base[:len(base)-1]+strings.ToUpper(base[len(base)-1:]))
	for _, space := range []string{" ", "  ", "\t", "\n", "\r\n", "\v", "\f", "\u0085", "\u00a0", "\u2003", "\u2028", "\u3000", "\ufeff", "\x00", `"`, "'", "`"} {
		add("trimming", base, space+base, base+space, space+base+space)
	}
	for _, sep := range separators {
		add("folding or trimming of separators", base, base+sep, sep+base, base+sep+sep)
		ends("folding of separators", sep+"b", sep+sep+"b", sep+sep+sep+"b", "b")
		ends("folding of separators", sep+"b"+sep+"c", sep+"b"+sep+sep+"c", sep+"c"+sep+"b")
	}
	for _, word := range []string{"lock", "locks", "locker", "lockers", "mutex", "lease", "key", "cache", "sem", "semaphore", "window", "token", "conformance"} {
		for _, sep := range []string{":", "/", ".", "-", "_", ""} {
			add("a prefix or suffix that is added once, or removed", base, word+sep+base, base+sep+word)
		}
		add("a prefix that is added once, or removed", word+":"+base, word+":"+word+":"+base)
	}
	add("reading as a path", base, "./"+base, "/./"+base, "../"+base, base+"/.", base+"/..", base+"/x/..", base+"/../"+base, "//"+base)
	add("reading as a pattern of LIKE", base, base[:len(base)-1]+"_", base[:len(base)-3]+"%", "%"+base[3:], "_"+base[1:],
		base[:len(base)-5]+"_____", base[:len(base)-2]+"%"+base[len(base)-1:], "%"+base+"%")
	add("reading as a glob or a regular expression", base, base[:len(base)-1]+"?", base[:len(base)-3]+"*", "*"+base[3:], "?"+base[1:],
		base[:len(base)-1]+"[a-z]", base[:len(base)-1]+"["+base[len(base)-1:]+"]", base[:len(base)-1]+".", base[:len(base)-3]+".*",
		base[:len(base)-1]+`\`+base[len(base)-1:], "^"+base+"$", "("+base+")", base[:len(base)-1]+"{"+base[len(base)-1:]+",z}")
	// Patterns also match names that are longer than they are.
	ends("reading as a pattern of LIKE", "axb", "a_b", "a%b", "a%", `a\_b`)
	ends("reading as a glob or a regular expression", "axb", "a?b", "a*b", "a[xyz]b", "a[^y]b", "a.b", "a.*b", `a\xb`, "a(x|y)b")
	addEncoded(add, base)
	addNumbers(add)
	addCut(add, base)
	addHashed(add, base)
	return list
}

// All returns the names of pairs, each once.
func All(pairs []Pair) []string {
	var all []string
	for _, p := range pairs {
		all = append(all, p.A, p.B)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

var separators = []string{":", "/", ".", "-", "_", "|", ",", ";", "#", "@", "=", "&", "~", " ", `\`}

// texts are what follows base in names that a transformation makes equal to the first of its row.
var texts = []struct {
	rule  string
	texts []string
}{
	{"folding of the case of Unicode", []string{"é", "É"}},
	{"folding of the case of Unicode", []string{"ж", "Ж"}},
	{"folding of the case of Unicode", []string{"σ", "Σ", "ς"}},
	{"folding of the case of Unicode", []string{"ｂ", "Ｂ"}},
	{"folding of the case of Unicode", []string{"ǆ", "Ǆ", "ǅ"}},
	{"folding of the case of Unicode", []string{"ä", "Ä", "a\u0308", "A\u0308"}},
	{"folding of the case of Unicode", []string{"s", "\u017f", "S"}},
	{"folding of the case of Unicode", []string{"k", "\u212a", "K"}},
	{"folding of the case of Unicode", []string{"i", "I", "\u0131", "İ", "i\u0307"}},
	{"folding of the case of Unicode", []string{"ss", "ß", "ẞ", "SS"}},
	{"folding of the case of Unicode", []string{"ա", "Ա"}},
	{"folding of the case of Unicode", []string{"\U00010428", "\U00010400"}},
	{"folding of accents", []string{"e", "é", "è", "ê", "ë", "ē", "ę"}},
	{"folding of accents", []string{"o", "ö", "ø", "ő"}},
	{"folding of accents", []string{"a", "å", "ä", "à", "ą"}},
	{"folding of accents", []string{"n", "ñ"}},
	{"folding of accents", []string{"c", "ç", "č"}},
	{"folding of accents", []string{"u", "ü"}},
	{"folding of accents", []string{"l", "ł"}},
	{"folding of accents", []string{"и", "й"}},
	{"folding of accents", []string{"ae", "æ", "ä"}},
	{"folding of kana", []string{"か", "カ", "ｶ", "が"}},
	{"folding of kana", []string{"は", "ば", "ぱ", "ハ"}},
	{"folding of kana", []string{"つ", "っ"}},
	{"folding of kana", []string{"あ", "ぁ", "ア", "ｱ"}},
	{"folding of kana", []string{"カア", "カー"}},
	{"folding of width", []string{"A", "Ａ"}},
	{"folding of width", []string{"1", "１"}},
	{"folding of width", []string{":b", "：b"}},
	{"folding of width", []string{"ガ", "ｶﾞ", "カ\u3099"}},
	{"normalization", []string{"é", "e\u0301"}},
	{"normalization", []string{"å", "a\u030a"}},
	{"normalization", []string{"Å", "\u212b", "A\u030a"}},
	{"normalization", []string{"Ω", "\u2126"}},
	{"normalization", []string{"가", "\u1100\u1161"}},
	{"normalization", []string{"ậ", "a\u0323\u0302", "a\u0302\u0323"}},
	{"normalization", []string{"fi", "ﬁ"}},
	{"normalization", []string{"2", "²", "②", "𝟐"}},
	{"normalization", []string{"μ", "µ"}},
	{"normalization", []string{"1/2b", "1\u20442b", "½b"}},
	{"normalization", []string{"...", "…"}},
	{"normalization", []string{"豈", "\uf900"}},
	{"normalization", []string{"-b", "\u2010b", "\u2013b", "\u2212b"}},
	{"dropping of invisible characters", []string{"b", "\u200bb", "b\u200d", "b\u00ad", "b\ufe0f", "b\u2060", "b\u034f", "b\u200e", "\ufeffb", "b\x01", "b\x7f"}},
	{"a charset without four-byte characters", []string{"😀", "😁", "?", "\ufffd", "????", "", "😀x", "x"}},
	{"a charset of one byte", []string{"日", "本", "?", "\u043f"}},
	{"a charset of one byte", []string{"é", "Ã©", "\xe9"}},
	{"replacement of what is not UTF-8", []string{"\xff", "\xfe", "\ufffd", "", "\xff\xfe", "\xc3", "\xed\xa0\x80"}},
	{"ending at a NUL", []string{"", "\x00", "\x00x", "\x00y", "\x00\x00"}},
	{"ending at a line", []string{"", "\nx", "\r\nx", "\rx"}},
	{"folding of white space", []string{" b", "  b", "\tb", "\nb", "\r\nb", "\u00a0b", "\n\nb", "b", "+b", "%20b"}},
	{"folding of line ends", []string{"\nb", "\r\nb", "\rb"}},
	{"unescaping", []string{"A", "%41", `\u0041`, `\x41`, `\101`, "&#65;", "=41", "%2541", "&#x41;", "+AEE-"}},
	{"unescaping", []string{"%41", "%2541"}},
	{"unescaping", []string{"/b", "%2Fb", "%2fb", "%252Fb", `\/b`}},
	{"unescaping", []string{":b", "%3Ab", "%3ab"}},
	{"unescaping", []string{"é", "%C3%A9", `\u00e9`, "&eacute;"}},
	{"unescaping", []string{"&b", "&amp;b", "%26b"}},
	{"unescaping", []string{`\`, `\\`}},
	{"unescaping", []string{`\n`, "\n", `\\n`}},
	{"unescaping", []string{"", "%00", "%", "%zz", "?", "?b", "?b=1", "#b", ";b=1", "${b}", "$b", "{x}", "{}", "}x{", "*x", "[x]", "''", `""`, "--", "/*b*/", "<b>"}},
	{"unescaping", []string{"'b", "''b", `\'b`}},
	{"a number without its notation", []string{"1", "01", "1.0", "+1", "1e0", "001", " 1"}},
	{"a number without its notation", []string{":1", ":01", ":1.0"}},
	{"a number without its notation", []string{"/7/b", "/07/b", "/007/b"}},
	{"a sum of bytes", []string{"ab", "ba"}},
	{"a sum of bytes", []string{"aab", "aba", "baa", "bbB"}},
	{"an exclusive or of bytes", []string{"", "bb", "abab"}},
	{"repeated characters taken for one", []string{"o", "oo", "ooo"}},
	{"international domain names", []string{".bücher", ".xn--bcher-kva"}},
	{"a slug", []string{"-b", "_b", " b", "/b", ".b", "!b", "--b"}},
	{"one separator written as another", []string{":b", "/b", ".b", "-b", "_b"}},
	{"one separator written as another", []string{"/b/c", ".b.c", "_b_c"}},
	{"one separator written as another", []string{".b", "/b"}},
	{"words without what is between them", []string{"b1", "b-1", "b:1", "b/1"}},
	{"letters and digits only", []string{"", "!", "!!", "é", "日", "😀", "()", "\x1b"}},
	{"seven bits to the byte", []string{"a", "\xe1"}},
	{"the hash tag of a cluster", []string{"{x}", "{x}y", "{y}"}},
}

// addEncoded adds names that are another's encoding, and names that several encodings decode.
func addEncoded(add func(rule string, names ...string), base string) {
	std := base64.StdEncoding.EncodeToString([]byte(base))
	add("decoding", base, std, strings.TrimRight(std, "="), base64.RawURLEncoding.EncodeToString([]byte(base)),
		hex.EncodeToString([]byte(base)), "0x"+hex.EncodeToString([]byte(base)), url.QueryEscape(base+" "), strconv.Quote(base))
	for _, size := range []int{1, 2, 3} {
		raw := []byte(base + strings.Repeat("\xfb\xef\xff", size) + strings.Repeat("x", size))
		std := base64.StdEncoding.EncodeToString(raw)
		add("reading as base64", std, base64.URLEncoding.EncodeToString(raw), strings.TrimRight(std, "="),
			base64.RawURLEncoding.EncodeToString(raw), std+"\n", std[:20]+"\n"+std[20:], std+"=")
	}
	// The last digit of base64 may have bits that are not part of what is encoded.
	whole := std[:len(std)/4*4-4]
	add("reading as base64", whole+"QQ", whole+"QR", whole+"QQ==")
	digits := fmt.Sprintf("%016x%016x", rand.Uint64()|0xa<<60, rand.Uint64()|0xb<<60)
	id := digits[:8] + "-" + digits[8:12] + "-" + digits[12:16] + "-" + digits[16:20] + "-" + digits[20:]
	add("reading as a UUID", id, strings.ToUpper(id), "{"+id+"}", "{"+strings.ToUpper(id)+"}", "urn:uuid:"+id, digits, "("+id+")",
		digits[:16]+"-"+digits[16:], " "+id)
	add("reading as hexadecimal digits", digits, strings.ToUpper(digits), "0x"+digits, "0X"+digits, "0x"+strings.ToUpper(digits),
		`\x`+digits, "0"+digits, "00"+digits, digits+"h", "x'"+digits+"'", strings.ToUpper(digits[:1])+digits[1:])
	odd := fmt.Sprintf("%015x", rand.Uint64()>>4|0xa<<56)
	add("reading as hexadecimal digits", odd, "0"+odd, strings.ToUpper(odd), odd[:14], odd+"0")
}

// addNumbers adds the same few numbers in different notations, or ones that are the same when rounded
// to the 53 bits of a float.
func addNumbers(add func(rule string, names ...string)) {
	n := 1e17 + rand.Uint64N(9e17)&^3 // of 18 digits
	s := strconv.FormatUint(n, 10)
	add("reading as a number", s, "0"+s, "00"+s, "+"+s, "-"+s, s+".", s+".0", s+".00", s+"e0", s+"E0", s+"e+0",
		s[:1]+"."+s[1:]+"e17", s[:1]+"."+s[1:]+"E+17", " "+s, s+" ", s+"L", s+"n", strconv.FormatUint(n^1, 10), strconv.FormatUint(n^2, 10),
		fmt.Sprintf("0x%x", n), fmt.Sprintf("0X%x", n), fmt.Sprintf("0o%o", n), fmt.Sprintf("0%o", n), fmt.Sprintf("0b%b", n),
		s[:3]+"_"+s[3:], s[:3]+","+s[3:], s+"x", "$"+s)
	add("reading as a number", "-"+s, "-0"+s, "-"+s+".0", "("+s+")")
	round := strconv.FormatUint(1e11+rand.Uint64N(9e11)|1, 10) // of 12 digits, before some zeros
	add("reading as a number", round+"000", round+"e3", round+"E3", round+"000.0", round+"0e2", "0"+round+"e3")
}

// widths are those of columns, file names, identifiers and keys, and what is left after a prefix.
var widths = []int{40, 48, 50, 60, 63, 64, 72, 80, 96, 100, 120, 127, 128, 160, 191, 200, 230, 240, 243, 249, 250, 251, 255, 256,
	260, 300, 384, 400, 500, 511, 512, 640, 767, 768, 1000, 1023}

// addCut adds names that differ only at their head, in the middle, or at their tail, at each width
// plus one; and, longer than any width, in other places.
func addCut(add func(rule string, names ...string), base string) {
	filled := func(n int) string {
		if short := n - len(base); short > 0 {
			return base[:len(base)-1] + strings.Repeat("l", short) + base[len(base)-1:]
		}
		return base
	}
	changed := func(name string, i int) string { return name[:i] + "Z" + name[i+1:] }
	for _, w := range widths {
		if w <= len(base) {
			continue
		}
		name := filled(w + 1)
		add("truncation of the tail", name, changed(name, w), name[:w])
		add("truncation in the middle", name, changed(name, (w+1)/2))
		add("truncation of the head", name, changed(name, 0), name[1:])
	}
	for _, length := range []int{3 * len(base), 600, Limit} {
		name := filled(length)
		for i := 1; i < 16; i++ {
			add("truncation in the middle", name, changed(name, i*length/16))
		}
	}
	short := base + "b"
	add("comparing the shorter length only", short, short[1:], short[:len(short)-1], short+short, short+":"+short)
	add("padding", base+"\x00", base+strings.Repeat("\x00", 64), base+strings.Repeat(" ", 64), base+strings.Repeat("0", 64))
}
