package sources

import (
	"archive/zip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
)

// Limits of a bundle. Unpack checks them while it unpacks, whatever the archive says about sizes.
const (
	MaxBundle   = 512 << 20 // bytes of the file
	maxUnpacked = 2 << 30   // bytes of all files
	maxFiles    = 50_000
)

// Bundle is an MCP bundle: a zip archive with a server and its manifest.json. Its manifest_version
// is 0.1 to 0.4.
type Bundle struct {
	Name    string // valid as the name of a server
	Version string
	Hash    string   // SHA-256 of the file in hexadecimal; "" for a folder
	Options []Option // values that the user may set, sorted by key

	path     string
	most     int64 // limit for the total size of the files in bytes
	manifest manifest
}

// Option is a member of user_config: a value that the user may set.
type Option struct {
	Key       string   `json:"-"`
	Type      string   `json:"type"` // string, number, boolean, directory or file
	Title     string   `json:"title"`
	About     string   `json:"description"`
	Required  bool     `json:"required"`
	Multiple  bool     `json:"multiple"`
	Sensitive bool     `json:"sensitive"`
	Min       *float64 `json:"min"`
	Max       *float64 `json:"max"`
	Default   texts    `json:"default"` // one value, or several if Multiple is set; nil for none
}

type manifest struct {
	Old     string `json:"dxt_version"`
	Format  string `json:"manifest_version"`
	Name    string `json:"name"`
	Version string `json:"version"`
	Server  struct {
		Type  string `json:"type"`
		Entry string `json:"entry_point"`
		Start *start `json:"mcp_config"`
	} `json:"server"`
	Options       map[string]Option `json:"user_config"`
	Compatibility struct {
		Platforms []string `json:"platforms"`
	} `json:"compatibility"`
}

type start struct {
	Command   string            `json:"command"`
	Args      []string          `json:"args"`
	Env       map[string]string `json:"env"`
	Platforms map[string]start  `json:"platform_overrides"`
}

// texts are a JSON scalar, or the scalars in an array, as strings.
type texts []string

// UnmarshalJSON implements json.Unmarshaler.
func (t *texts) UnmarshalJSON(text []byte) error {
	var all []json.RawMessage
	if json.Unmarshal(text, &all) != nil {
		all = []json.RawMessage{text}
	}
	*t = nil
	for _, one := range all {
		var s string
		if json.Unmarshal(one, &s) != nil {
			s = string(one) // a number or boolean
		}
		if s != "null" {
			*t = append(*t, s)
		}
	}
	return nil
}

// OpenBundle reads the manifest of a bundle, and computes the hash of the file.
func OpenBundle(file string) (*Bundle, error) {
	b, err := openBundle(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(file), err)
	}
	return b, nil
}

func openBundle(file string) (*Bundle, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written to it
	sum := sha256.New()
	switch n, err := io.Copy(sum, io.LimitReader(f, MaxBundle+1)); {
	case err != nil:
		return nil, err
	case n > MaxBundle:
		return nil, fmt.Errorf("the bundle is larger than %d MiB", MaxBundle>>20)
	}
	z, err := zip.OpenReader(file)
	if err != nil {
		return nil, fmt.Errorf("it is no bundle, which is a zip archive with a manifest.json: %w", err)
	}
	defer func() { _ = z.Close() }()
	i := slices.IndexFunc(z.File, func(f *zip.File) bool { return f.Name == "manifest.json" })
	if i < 0 {
		return nil, errors.New("it is no bundle: it has no manifest.json")
	}
	r, err := z.File[i].Open()
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err != nil {
		return nil, err
	}
	b, err := read(text)
	if err == nil {
		b.path, b.most, b.Hash = file, maxUnpacked, hex.EncodeToString(sum.Sum(nil))
	}
	return b, err
}

// BundleIn reads the manifest of an unpacked bundle in a folder. ok is false if there is none.
func BundleIn(dir string) (b *Bundle, ok bool, err error) {
	text, err := readManifest(filepath.Join(dir, "manifest.json"))
	var m manifest
	if err != nil || json.Unmarshal(text, &m) != nil || m.Server.Type == "" {
		return nil, false, nil //nolint:nilerr // the manifest.json belongs to something else
	}
	b, err = read(text)
	return b, true, err
}

func read(text []byte) (*Bundle, error) {
	var m manifest
	if len(text) > maxManifest {
		return nil, errors.New("manifest.json is larger than 1 MiB")
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("manifest.json: %w", err)
	}
	format := m.Format
	if format == "" {
		format = m.Old
	}
	if !slices.Contains([]string{"0.1", "0.2", "0.3", "0.4"}, format) {
		return nil, fmt.Errorf("manifest.json: manifest_version is %q: this dormouse reads 0.1 to 0.4", format)
	}
	if m.Name == "" || !slices.Contains([]string{"node", "python", "binary", "uv"}, m.Server.Type) || !filepath.IsLocal(filepath.FromSlash(m.Server.Entry)) {
		return nil, errors.New("manifest.json: it must have a name, server.type (node, python, binary or uv), and server.entry_point within the bundle")
	}
	if on := runtime.GOOS; m.Compatibility.Platforms != nil && !slices.Contains(m.Compatibility.Platforms, on) {
		return nil, fmt.Errorf("the bundle is for %s, and not for %s", strings.Join(m.Compatibility.Platforms, ", "), on)
	}
	b := &Bundle{Name: short(m.Name), Version: m.Version, manifest: m}
	for _, key := range slices.Sorted(maps.Keys(m.Options)) {
		o := m.Options[key]
		o.Key = key
		for i, value := range o.Default {
			o.Default[i] = places(value)
		}
		b.Options = append(b.Options, o)
	}
	return b, nil
}

// places replaces variables of manifests that stand for a folder of the user, such as ${DESKTOP},
// or for a separator, such as ${/}.
func places(text string) string {
	return strings.NewReplacer("${DESKTOP}", "${HOME}/Desktop", "${DOCUMENTS}", "${HOME}/Documents", "${DOWNLOADS}", "${HOME}/Downloads",
		"${pathSeparator}", "/", "${/}", "/").Replace(text)
}

// Check parses and checks what a user has given for an option: one value, or several separated by
// colons if Multiple is set. It makes paths absolute. Its error quotes no value.
func (o Option) Check(given string) (values []string, err error) {
	values = []string{given}
	if o.Multiple {
		values = filepath.SplitList(given)
	}
	for i, value := range values {
		switch o.Type {
		case "number":
			n, err := strconv.ParseFloat(value, 64)
			if err != nil || o.Min != nil && n < *o.Min || o.Max != nil && n > *o.Max {
				return nil, fmt.Errorf("%s must be a number%s", o.Key, o.between())
			}
		case "boolean":
			if value != "true" && value != "false" {
				return nil, fmt.Errorf("%s must be true or false", o.Key)
			}
		case "directory", "file":
			if home, err := os.UserHomeDir(); err == nil && (value == "~" || strings.HasPrefix(value, "~/")) {
				value = home + value[1:]
			}
			if values[i], err = filepath.Abs(value); err != nil {
				return nil, err
			}
			if info, err := os.Stat(values[i]); err != nil || info.IsDir() != (o.Type == "directory") {
				return nil, fmt.Errorf("%s must be a %s that is there", o.Key, o.Type)
			}
		}
	}
	return values, nil
}

func (o Option) between() string {
	switch {
	case o.Min != nil && o.Max != nil:
		return fmt.Sprintf(" from %v to %v", *o.Min, *o.Max)
	case o.Min != nil:
		return fmt.Sprintf(" of %v at least", *o.Min)
	case o.Max != nil:
		return fmt.Sprintf(" of %v at most", *o.Max)
	}
	return ""
}

// Entry returns the entry for the server, whose files are in dir. The argument values has the
// values of the options by key, which may contain references such as ${VAR}. An argument or a
// variable that is only a reference to an option without a value is left out.
func (b *Bundle) Entry(dir string, values map[string][]string) (e serversedit.Entry, err error) {
	m := b.manifest
	file := filepath.Join(dir, filepath.FromSlash(m.Server.Entry))
	s := start{}
	switch {
	case m.Server.Start != nil && m.Server.Start.Command != "":
		s = *m.Server.Start
		if own, ok := s.Platforms[runtime.GOOS]; ok {
			if own.Command != "" {
				s.Command = own.Command
			}
			if own.Args != nil {
				s.Args = own.Args
			}
			if own.Env != nil {
				s.Env = own.Env
			}
		}
	case m.Server.Type == "uv":
		s.Command, s.Args = "uv", []string{"run", "--project", dir, file}
	case m.Server.Type == "binary":
		s.Command = file
	default:
		s.Command, s.Args = map[string]string{"node": "node", "python": "python3"}[m.Server.Type], []string{file}
	}
	fill := func(text string) ([]string, error) { return b.fill(text, dir, values) }
	command, err := fill(s.Command)
	if err != nil || len(command) != 1 {
		return e, errors.Join(err, fmt.Errorf("manifest.json: mcp_config.command is not one word"))
	}
	e.Command, e.Cwd = within(dir, command[0]), dir
	if _, err := exec.LookPath("python"); e.Command == "python" && err != nil {
		e.Command = "python3"
	}
	for _, arg := range s.Args {
		words, err := fill(arg)
		if err != nil {
			return e, err
		}
		for _, word := range words {
			e.Args = append(e.Args, within(dir, word))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		words, err := fill(s.Env[name])
		if err != nil {
			return e, err
		}
		for _, o := range b.Options {
			if o.Sensitive && strings.Contains(s.Env[name], "${user_config."+o.Key+"}") && len(values[o.Key]) > 0 {
				e.Hide(name)
			}
		}
		if len(words) > 0 {
			e.Env = append(e.Env, serversedit.Variable{Name: name, Value: strings.Join(words, string(filepath.ListSeparator))})
		}
	}
	return e, nil
}

// within returns the absolute path if word names a file of the bundle.
func within(dir, word string) string {
	if strings.Contains(word, "/") && filepath.IsLocal(word) && isFile(filepath.Join(dir, word)) {
		return filepath.Join(dir, word)
	}
	return word
}

var reference = regexp.MustCompile(`\$\{([^{}]*)\}`)

// fill replaces the variables of a manifest in a text. If the text is only a reference to an option,
// the result has all values of that option.
func (b *Bundle) fill(text, dir string, values map[string][]string) (words []string, err error) {
	if m := reference.FindStringSubmatch(text); m != nil && m[0] == text {
		if key, ok := strings.CutPrefix(m[1], "user_config."); ok && b.has(key) {
			return values[key], nil
		}
	}
	text = reference.ReplaceAllStringFunc(places(text), func(ref string) string {
		name := ref[2 : len(ref)-1]
		key, option := strings.CutPrefix(name, "user_config.")
		switch {
		case name == "__dirname":
			return dir
		case name == "HOME":
			return ref
		case option && b.has(key):
			return strings.Join(values[key], string(filepath.ListSeparator))
		}
		err = fmt.Errorf("manifest.json: mcp_config uses %s, which is no variable of bundles", ref)
		return ref
	})
	return []string{text}, err
}

func (b *Bundle) has(key string) bool {
	_, ok := b.manifest.Options[key]
	return ok
}

// Unpack unpacks the bundle into a new folder. After an error the folder does not exist. Unpack
// writes nothing outside the folder, no links, and no more than the limits of this package.
func (b *Bundle) Unpack(dir string) (err error) {
	z, err := zip.OpenReader(b.path)
	if err != nil {
		return err
	}
	defer func() { _ = z.Close() }()
	if len(z.File) > maxFiles {
		return fmt.Errorf("%s has more than %d files", filepath.Base(b.path), maxFiles)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // a confined server has a user of its own, and reads the folder
		return err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), ".unpacking-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(part) }()
	root, err := os.OpenRoot(part)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	left := b.most
	for _, f := range z.File {
		n, err := unpack(root, f, left)
		if err != nil {
			return fmt.Errorf("%s: %q: %w", filepath.Base(b.path), f.Name, err)
		}
		left -= n
	}
	if b.manifest.Server.Type == "binary" {
		_ = root.Chmod(filepath.FromSlash(b.manifest.Server.Entry), 0o755) // on an error, the start of the server will fail
	}
	if err := os.Chmod(part, 0o755); err != nil { //nolint:gosec // a confined server, which has a user of its own, reads the folder
		return err
	}
	return os.Rename(part, dir)
}

// unpack writes one file of an archive, and returns its size. It fails if the file is longer than
// limit, in bytes.
func unpack(root *os.Root, f *zip.File, limit int64) (n int64, err error) {
	name := filepath.FromSlash(strings.TrimSuffix(f.Name, "/"))
	if !filepath.IsLocal(name) || strings.Contains(name, `\`) {
		return 0, errors.New("the path leads out of the bundle")
	}
	if strings.HasSuffix(f.Name, "/") {
		return 0, root.MkdirAll(name, 0o755)
	}
	if !f.Mode().IsRegular() {
		return 0, errors.New("it is no regular file")
	}
	if folder := path.Dir(f.Name); folder != "." {
		if err := root.MkdirAll(filepath.FromSlash(folder), 0o755); err != nil {
			return 0, err
		}
	}
	mode := fs.FileMode(0o644)
	if f.Mode()&0o111 != 0 {
		mode = 0o755
	}
	from, err := f.Open()
	if err != nil {
		return 0, err
	}
	defer func() { _ = from.Close() }()
	to, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return 0, err
	}
	n, err = io.Copy(to, io.LimitReader(from, limit+1))
	if err == nil && n > limit {
		err = fmt.Errorf("the files of the bundle are larger than %d MiB", maxUnpacked>>20)
	}
	return n, errors.Join(err, to.Close())
}
